"""Measures what an engine's steps cost here, and whether a row depends on its step's width."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from lade_edge.runtime.device_profile import DeviceProfile

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine, Float32Array

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32)
_NEAR, _FAR = 256, 2048  # committed slots while measuring, fewer where the capacity is lower
_ROUNDS, _FAR_ROUNDS = 7, 3

Progress = Callable[[float], None]


def measure(
    engine: Engine, widths: Sequence[int], progress: Progress = lambda share: None
) -> DeviceProfile:
    """Measure step times, interleaved so that a drifting machine gives true ratios.

    Of all rounds the least time of a width counts: the one that nothing else on the machine disturbed.

    Args:
        engine: Engine; its cache is emptied before and after.
        widths: Widths to measure, ascending.
        progress: Told the finished share.
    """
    lengths = measured_lengths(engine, widths)
    rounds = {used: _FAR_ROUNDS if used > _NEAR else _ROUNDS for used in lengths}
    total, done = sum(rounds.values()) + len(rounds), 0
    text = np.random.default_rng(0).integers(0, engine.spec.vocab_size, lengths[-1] + widths[-1])
    times: dict[int, dict[int, list[float]]] = {
        used: {width: [] for width in widths} for used in lengths
    }
    rows: dict[int, dict[int, list[bytes]]] = {used: {} for used in lengths}
    engine.reset()
    try:
        for used in lengths:
            engine.prefill(text[engine.length : used])
            for round_number in range(rounds[used] + 1):  # the first one warms up
                for width in widths:
                    tokens = text[used : used + width].tolist()
                    chain, wanted = np.tri(width, dtype=np.bool_), np.arange(width)
                    engine.step(tokens, range(used, used + width), chain, wanted)
                    times[used][width].append(1e3 * engine.run_s)
                    if not round_number:
                        rows[used][width] = [_digest(engine.logits(row)) for row in range(width)]
                done += 1
                progress(done / total)
    finally:
        engine.reset()
    found = [_invariant_from(by_width) for by_width in rows.values()]
    return DeviceProfile(
        step_ms={
            used: {width: min(spent[1:]) for width, spent in by_width.items()}
            for used, by_width in times.items()
        },
        invariant_from=None if None in found else max(filter(None, found)),
    )


def measured_lengths(engine: Engine, widths: Sequence[int]) -> list[int]:
    """Committed slots at which to measure: what the capacity allows of the two."""
    spec = engine.spec
    most = max(1, min(spec.capacity - 1, spec.max_position - widths[-1]))
    return sorted({min(_NEAR, most), min(_FAR, most)})


def _digest(row: Float32Array) -> bytes:
    return hashlib.sha256(row.tobytes()).digest()


def _invariant_from(rows: dict[int, list[bytes]]) -> int | None:
    """Least width whose rows all wider steps repeat, from what tells rows apart."""
    widths = sorted(rows)
    for index, width in enumerate(widths[:-1]):
        if all(rows[wider][:width] == rows[width] for wider in widths[index + 1 :]):
            return width
    return None
