"""Additive attention masks over cache slots, made from what a step's tokens may see."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.protocol import BoolArray, Int64Array

MASKED = -30000.0  # far below any score, yet finite in fp16, where -inf rows would turn to NaN
_BY_VISIBILITY = {
    kind: np.array([MASKED, 0.0], kind) for kind in (np.dtype(np.float16), np.dtype(np.float32))
}


def fill_mask(
    out: npt.NDArray[Any],
    length: int,
    visible: BoolArray,
    positions: Int64Array | None = None,
    window: int | None = None,
) -> None:
    """Write the mask of one step: 0 where a token sees a slot, `MASKED` elsewhere.

    Args:
        out: ``(T, columns)`` with ``columns >= length + T``, float16 or float32; overwritten.
        length: Committed slots P; slot j below it holds position j.
        visible: ``(T, T)`` bool among the step's own tokens.
        positions: ``(T,)`` positions of the tokens; needed with ``window``.
        window: If given, a token sees a slot only if it lies less than ``window`` positions back,
            by *position*: in a tree, slots and positions differ.
    """
    width, columns = len(visible), out.shape[1]
    out.fill(0.0)
    if columns > length + width:
        out[:, length + width :] = MASKED
    block = visible
    if window is not None:
        if positions is None:
            raise ValueError("a windowed mask needs positions")
        block = visible & (positions[:, None] - positions[None, :] < window)
        oldest = np.maximum(positions - (window - 1), 0)
        for row in np.flatnonzero(oldest):
            out[row, : min(int(oldest[row]), length)] = MASKED
    if width > 1:
        out[:, length : length + width] = _BY_VISIBILITY[out.dtype].take(block.view(np.uint8))
