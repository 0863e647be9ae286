"""What this engine's steps cost on this device, and whether a row depends on its step's width.

Measured once, in a few seconds, and kept in the user's cache folder under everything that could
change it: bundle, graph, engine, device, threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32)
_USED = 256  # committed slots while measuring, fewer where the capacity is lower
_ROUNDS = 7
_FORMAT = 1

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One measurement.

    Attributes:
        step_ms: Median milliseconds of a step by its width in tokens, all rows wanted.
        invariant_from: Least width from which the rows of a chain are the same, bit for bit, in
            steps of every measured width; None if there is no such width below the widest.
    """

    step_ms: dict[int, float]
    invariant_from: int | None


def load_profile(
    engine: Engine, *, identity: str, max_width: int, progress: Progress = lambda share: None
) -> DeviceProfile:
    """The profile from the cache, or a fresh one that is put there.

    Args:
        engine: Empty engine; left empty.
        identity: Everything about model and settings that could change the result.
        max_width: Widest step of interest.
        progress: Told the finished share of a measurement, 0 to 1.
    """
    widths = [width for width in WIDTHS if width <= min(max_width, engine.spec.max_width)]
    key = "\n".join([
        str(_FORMAT), identity, engine.spec.name, str(engine.spec.capacity), device_identity(),
        repr(widths),
    ])  # fmt: skip
    try:
        path = cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    except RuntimeError:  # no home folder: nothing is kept
        return measure(engine, widths, progress)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        times = {int(width): float(ms) for width, ms in content["step_ms"].items()}
        if sorted(times) == widths and all(ms > 0 for ms in times.values()):
            invariant_from = content["invariant_from"]
            if invariant_from is None or invariant_from in widths:
                return DeviceProfile(step_ms=times, invariant_from=invariant_from)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass  # absent, or of no use: measured again
    profile = measure(engine, widths, progress)
    _store(path, profile)
    return profile


def measure(
    engine: Engine, widths: Sequence[int], progress: Progress = lambda share: None
) -> DeviceProfile:
    """Measure step times, interleaved so that a drifting machine gives true ratios.

    Args:
        engine: Engine; its cache is emptied before and after.
        widths: Widths to measure, ascending.
        progress: Told the finished share.
    """
    spec = engine.spec
    used = max(1, min(_USED, spec.capacity - 1, spec.max_position - widths[-1]))
    rng = np.random.default_rng(0)
    text = rng.integers(0, spec.vocab_size, used + widths[-1])
    engine.reset()
    engine.prefill(text[:used])
    times: dict[int, list[float]] = {width: [] for width in widths}
    rows: dict[int, list[bytes]] = {}
    try:
        for round_number in range(_ROUNDS + 1):  # the first one warms up
            for width in widths:
                tokens = text[used : used + width]
                chain, wanted = np.tri(width, dtype=np.bool_), np.arange(width)
                started = perf_counter()
                engine.step(tokens, np.arange(used, used + width), chain, wanted)
                times[width].append(1e3 * (perf_counter() - started))
                if not round_number:
                    rows[width] = [engine.logits(row).tobytes() for row in range(width)]
            progress((round_number + 1) / (_ROUNDS + 1))
    finally:
        engine.reset()
    return DeviceProfile(
        step_ms={width: float(np.median(spent[1:])) for width, spent in times.items()},
        invariant_from=_invariant_from(rows),
    )


def _invariant_from(rows: dict[int, list[bytes]]) -> int | None:
    """Least width whose rows all wider steps repeat."""
    widths = sorted(rows)
    for index, width in enumerate(widths[:-1]):
        if all(rows[wider][:width] == rows[width] for wider in widths[index + 1 :]):
            return width
    return None


def device_identity() -> str:
    """Processor and how many of them may be used, as far as that can be told."""
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Model")):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.machine()} {model} x{usable}"


def cache_folder() -> Path:
    """The user's cache folder for measurements, by the XDG convention."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "lade"


def _store(path: Path, profile: DeviceProfile) -> None:
    """Keep a profile if the place can be written; a measurement that isn't kept still counts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(profile)) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        pass
