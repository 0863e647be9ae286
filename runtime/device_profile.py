"""What this engine's steps cost on this device, and whether a row depends on its step's width.

Measured once, in a few seconds, and kept in the user's cache folder under everything that could
change it: bundle, graph, engine, device, threads.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from lade_edge.engines.cache_folder import cache_folder

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32)
_NEAR, _FAR = 256, 2048  # committed slots while measuring, fewer where the capacity is lower
_ROUNDS, _FAR_ROUNDS = 7, 3
_FORMAT = 2
_LEAST_STEPS = 8  # of one width in a generation, before its time says anything
_CORRECTION = 0.1

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """One measurement.

    Attributes:
        step_ms: Median milliseconds of a step by its width in tokens, all rows wanted, by
            committed slots: at one or two lengths, ascending.
        invariant_from: Least width from which the rows of a chain are the same, bit for bit, in
            steps of every measured width; None if there is no such width below the widest.
    """

    step_ms: dict[int, dict[int, float]]
    invariant_from: int | None

    @property
    def widths(self) -> list[int]:
        """The measured widths, ascending."""
        return sorted(next(iter(self.step_ms.values())))

    def at(self, length: int) -> dict[int, float]:
        """Milliseconds of a step by width behind ``length`` committed slots.

        Between the measured lengths and beyond them time grows as it did between them, as
        attention does; below the first it is that of the first.
        """
        near, far = min(self.step_ms), max(self.step_ms)
        first, last = self.step_ms[near], self.step_ms[far]
        share = max(length - near, 0) / (far - near) if far > near else 0.0
        return {
            width: first[width] + share * max(last[width] - first[width], 0.0) for width in first
        }

    def drift(self, seconds: Mapping[int, Sequence[float]], length: int) -> float:
        """How much slower than here measured the machine was in some steps; 1 without any.

        Args:
            seconds: Times of the steps by width.
            length: Committed slots, on average.
        """
        expected = self.at(length)
        known = {width: spent for width, spent in seconds.items() if width in expected and spent}
        total = sum(median(spent) * len(spent) for spent in known.values())
        if not total:  # no steps, or too short for the clock
            return 1.0
        return 1e3 * total / sum(expected[width] * len(spent) for width, spent in known.items())

    def corrected(self, seconds: Mapping[int, Sequence[float]], length: int) -> DeviceProfile:
        """This profile with the steps of a finished generation averaged in, slowly.

        Only the proportions between widths count: a machine that got slower as a whole changes
        nothing.

        Args:
            seconds: Times of the steps by width.
            length: Committed slots, on average.
        """
        expected, drift = self.at(length), self.drift(seconds, length)
        factors = {
            width: 1 + _CORRECTION * (1e3 * median(spent) / (drift * expected[width]) - 1)
            for width, spent in seconds.items()
            if width in expected and len(spent) >= _LEAST_STEPS and median(spent)
        }
        if len(factors) < 2:
            return self
        step_ms = {
            used: {width: ms * factors.get(width, 1.0) for width, ms in times.items()}
            for used, times in self.step_ms.items()
        }
        return DeviceProfile(step_ms=step_ms, invariant_from=self.invariant_from)


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
        profile = DeviceProfile(
            step_ms={
                int(used): {int(width): float(ms) for width, ms in times.items()}
                for used, times in content["step_ms"].items()
            },
            invariant_from=content["invariant_from"],
        )
        if (
            sorted(profile.step_ms) == _lengths(engine, widths)
            and all(
                sorted(times) == widths and all(0 < ms < float("inf") for ms in times.values())
                for times in profile.step_ms.values()
            )
            and (profile.invariant_from is None or profile.invariant_from in widths)
        ):
            return profile
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
    lengths = _lengths(engine, widths)
    rounds = {used: _FAR_ROUNDS if used > _NEAR else _ROUNDS for used in lengths}
    total, done = sum(rounds.values()) + len(rounds), 0
    text = np.random.default_rng(0).integers(0, engine.spec.vocab_size, lengths[-1] + widths[-1])
    times: dict[int, dict[int, list[float]]] = {
        used: {width: [] for width in widths} for used in lengths
    }
    rows: dict[int, list[bytes]] = {}
    engine.reset()
    try:
        for used in lengths:
            engine.prefill(text[engine.length : used])
            for round_number in range(rounds[used] + 1):  # the first one warms up
                for width in widths:
                    tokens = text[used : used + width].tolist()
                    chain, wanted = np.tri(width, dtype=np.bool_), np.arange(width)
                    started = perf_counter()
                    engine.step(tokens, range(used, used + width), chain, wanted)
                    times[used][width].append(1e3 * (perf_counter() - started))
                    if used == lengths[0] and not round_number:
                        rows[width] = [engine.logits(row).tobytes() for row in range(width)]
                done += 1
                progress(done / total)
    finally:
        engine.reset()
    return DeviceProfile(
        step_ms={
            used: {width: median(spent[1:]) for width, spent in by_width.items()}
            for used, by_width in times.items()
        },
        invariant_from=_invariant_from(rows),
    )


def _lengths(engine: Engine, widths: Sequence[int]) -> list[int]:
    """Committed slots at which to measure: what the capacity allows of the two."""
    spec = engine.spec
    most = max(1, min(spec.capacity - 1, spec.max_position - widths[-1]))
    return sorted({min(_NEAR, most), min(_FAR, most)})


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
    return f"{platform.machine()} {model} x{usable_processors()}"


def usable_processors() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _store(path: Path, profile: DeviceProfile) -> None:
    """Keep a profile if the place can be written; a measurement that isn't kept still counts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(asdict(profile)) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        pass
