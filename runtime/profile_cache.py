"""Keeps measured step times in the user's cache folder, under everything that could change them.

Bundle, graph, engine, device and threads make the name of a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines.cache_folder import cache_folder
from lade_edge.runtime.device_profile import DeviceProfile
from lade_edge.runtime.profile_measurement import measured_lengths

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine

_FORMAT = 3
_MOVED = 1.02  # times of one width over another's, before a profile is written again


class ProfileCache:
    """The file of one engine's step times.

    Args:
        engine: The engine.
        identity: Everything about model and settings that could change the result.
        widths: Widths the times are wanted of, ascending.
    """

    def __init__(self, engine: Engine, identity: str, widths: Sequence[int]) -> None:
        self._widths = list(widths)
        self._lengths = measured_lengths(engine, self._widths)
        self._written: DeviceProfile | None = None
        key = "\n".join([
            str(_FORMAT), identity, engine.spec.name, str(engine.spec.capacity), device_identity(),
            repr(self._widths),
        ])  # fmt: skip
        try:
            folder = cache_folder()
        except RuntimeError:  # no home folder: nothing is kept
            self._path = None
        else:
            self._path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def read(self) -> DeviceProfile | None:
        """What was kept; None if there is nothing of use."""
        if self._path is None:
            return None
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            profile = DeviceProfile(
                step_ms={
                    int(used): {int(width): float(ms) for width, ms in times.items()}
                    for used, times in content["step_ms"].items()
                },
                invariant_from=content["invariant_from"],
            )
            if (
                sorted(profile.step_ms) != self._lengths
                or not all(
                    sorted(times) == self._widths
                    and all(0 < ms < float("inf") for ms in times.values())
                    for times in profile.step_ms.values()
                )
                or (
                    profile.invariant_from is not None
                    and profile.invariant_from not in self._widths
                )
            ):
                return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        self._written = profile
        return profile

    def write(self, profile: DeviceProfile) -> None:
        """Keep a profile if it says anything else than what is kept.

        A place that can't be written is no error.
        """
        if self._path is None or not self._is_news(profile):
            return
        self._written = profile  # tried once, also where it can't be written
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self._path.with_suffix(f".{os.getpid()}")
            temporary.write_text(json.dumps(asdict(profile)) + "\n", encoding="utf-8")
            temporary.replace(self._path)

    def _is_news(self, profile: DeviceProfile) -> bool:
        """Whether the proportions between widths moved by what is worth a write."""
        if self._written is None:
            return True
        for used, times in profile.step_ms.items():
            before = self._written.step_ms[used]
            changes = [ms / before[width] for width, ms in times.items()]
            if max(changes) > _MOVED * min(changes):
                return True
        return False


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
    return f"{platform.machine()} {model} x{usable_processors()}"


def usable_processors() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
