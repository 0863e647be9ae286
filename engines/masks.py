"""Additive attention masks over cache slots, made from what a step's tokens may see."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.protocol import BoolArray, Int64Array

MASKED = -30000.0  # far below any score, yet finite in fp16, where -inf rows would turn to NaN
_MAX_KEPT_BYTES = 32_000_000


class MaskWriter:
    """Writes the additive mask of a step: 0 where a token sees a slot, `MASKED` elsewhere.

    Args:
        dtype: float16 or float32.
        window: If given, a token sees a slot only if it lies less than ``window`` positions back,
            by *position*: in a tree, slots and positions differ.
    """

    def __init__(self, dtype: npt.DTypeLike, window: int | None = None) -> None:
        self._values = np.array([MASKED, 0.0], dtype)
        self._window = window
        self._kept_bytes = 0
        self._blocks: dict[int, tuple[BoolArray, npt.NDArray[Any]]] = {}

    def write(
        self, out: npt.NDArray[Any], length: int, visible: BoolArray, positions: Int64Array
    ) -> None:
        """Overwrite ``out`` with the mask of one step.

        Args:
            out: ``(T, columns)`` with ``columns >= length + T``.
            length: Committed slots P; slot j below it holds position j.
            visible: ``(T, T)`` bool among the step's own tokens; what is made of a read-only one
                is kept.
            positions: ``(T,)`` int64 positions of the tokens.
        """
        width, columns = len(visible), out.shape[1]
        out.fill(0.0)
        if columns > length + width:
            out[:, length + width :] = MASKED
        if self._window is not None:
            visible = visible & (positions[:, None] - positions[None, :] < self._window)
            oldest = np.maximum(positions - (self._window - 1), 0)
            for row in np.flatnonzero(oldest):
                out[row, : min(int(oldest[row]), length)] = MASKED
        if width > 1:
            out[:, length : length + width] = self._block(visible)

    def _block(self, visible: BoolArray) -> npt.NDArray[Any]:
        known = self._blocks.get(id(visible))
        if known is not None:
            return known[1]
        block = self._values.take(visible.view(np.uint8))
        if not visible.flags.writeable:
            if self._kept_bytes + block.nbytes > _MAX_KEPT_BYTES:
                self._blocks.clear()
                self._kept_bytes = 0
            self._kept_bytes += block.nbytes
            self._blocks[id(visible)] = visible, block  # held, so that its id stays its own
        return block
