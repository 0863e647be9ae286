"""A bench as a picture: step times, the widths that were chosen, what became of drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lade_edge.engines.errors import ConfigError


def check_plotting(path: Path) -> None:
    """Find out before the bench whether its picture can be drawn.

    Raises:
        ConfigError: If matplotlib is missing, or the place or type of the file won't do.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "--plot needs matplotlib; pip install 'lade-edge[bench]' brings it"
        ) from error
    if path.suffix.lower() != ".png" or not path.parent.is_dir():
        raise ConfigError(f"--plot {path} can't be made; expected a .png in a folder that exists")


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw a result of `run_bench` that has ``curve_ms``.

    Raises:
        ConfigError: If the file can't be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    times, widths, drafts = figure.subplots(1, 3)
    curve = result["curve_ms"]
    times.plot(list(curve), list(curve.values()), marker="o")
    times.set(title="Time of a step", xlabel="tokens", ylabel="ms")
    times.set_ylim(bottom=0)
    chosen = result["auto_widths"]
    widths.bar([str(width) for width in chosen], list(chosen.values()))
    widths.set(title="Widths chosen", xlabel="tokens", ylabel="steps")
    names = list(result["proposed"])
    drafts.barh(names, [result["proposed"][name] for name in names], label="fed")
    drafts.barh(names, [result["accepted"].get(name, 0) for name in names], label="accepted")
    drafts.set(title="Drafts by source", xlabel="tokens")
    if names:
        drafts.legend()
    figure.suptitle(result["engine"])
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from error
