"""Additive attention masks over cache slots, made from what a step's tokens may see.

`MaskWriter` writes a whole mask; `StepMask` owns the memory that a graph's input is bound to and
rewrites as little of it as the graph allows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.errors import CapacityError
from lade_edge.engines.protocol import BoolArray, Ids

MASKED = -30000.0  # far below any score, yet finite in fp16, where -inf rows would turn to NaN
GRANULE = 256  # slots; masks of lowered graphs grow by so many at a time
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

    def write(self, out: npt.NDArray[Any], length: int, visible: BoolArray, positions: Ids) -> None:
        """Overwrite ``out`` with the mask of one step.

        Args:
            out: ``(T, columns)`` with ``columns >= length + T``.
            length: Committed slots P; slot j below it holds position j.
            visible: ``(T, T)`` bool among the step's own tokens; what is made of a read-only one
                is kept.
            positions: Positions of the T tokens.
        """
        width, columns = len(visible), out.shape[1]
        out.fill(0.0)
        if columns > length + width:
            out[:, length + width :] = MASKED
        if self._window is not None:
            positions = np.asarray(positions, np.int64)
            visible = visible & (positions[:, None] - positions[None, :] < self._window)
            oldest = np.maximum(positions - (self._window - 1), 0)
            for row in np.flatnonzero(oldest):
                out[row, : min(int(oldest[row]), length)] = MASKED
        if width > 1:
            out[:, length : length + width] = self.block(visible)

    def block(self, visible: BoolArray) -> npt.NDArray[Any]:
        """The ``(T, T)`` part of a mask among a step's own tokens, without a sliding window."""
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


class StepMask:
    """Memory of a mask input, written step after step.

    The graph's attention reads slots up to the step's last one and none beyond, unless ``whole``
    is set. So a mask may be longer than that: it keeps one shape over `GRANULE` slots, zeros stay
    zeros, and from one step to the next only the block among the step's own tokens changes.

    Args:
        dtype: float16 or float32.
        rows: Tokens of the widest step.
        slots: Rows of the KV cache.
        window: Sliding window in positions; such a mask is written in full every time.
        whole: The graph reads a mask over all slots; it is written in full every time.

    Raises:
        CapacityError: If the memory can't be had.

    Attributes:
        columns: Length of the mask of the last step, at least its last slot and at most ``slots``.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike,
        rows: int,
        slots: int,
        *,
        window: int | None = None,
        whole: bool = False,
    ) -> None:
        self._writer = MaskWriter(dtype, window)
        try:
            self._buffer = np.zeros(rows * slots, dtype)
        except MemoryError as error:
            size_mb = rows * slots * np.dtype(dtype).itemsize / 1e6
            raise CapacityError(
                f"the mask of {slots} slots takes {size_mb:,.0f} MB, more than can be allocated; "
                "lower --capacity"
            ) from error
        self._rows = rows
        self._slots = slots
        self._in_full = whole or window is not None
        self._granule = slots if whole else GRANULE
        self._limit = self.columns = 0
        self._grid = self._buffer[:0].reshape(rows, 0)
        self._written = self._grid

    def write(self, length: int, visible: BoolArray, positions: Ids) -> None:
        """Write the mask of one step; arguments as for `MaskWriter.write`."""
        width = len(visible)
        end = length + width
        if not self._limit - 2 * self._granule < end <= self._limit:
            self._resize(end)
        if self._in_full:
            self._writer.write(self._grid[:width], length, visible, positions)
            return
        self._written.fill(0.0)
        self._written = self._grid[:width, length:end]
        self._written[:] = self._writer.block(visible)

    def view(self, width: int) -> npt.NDArray[Any]:
        """The mask ``(1, 1, T, columns)`` of a step of this width; the mask's own memory."""
        return self._grid[:width].reshape(1, 1, width, self.columns)

    def _resize(self, end: int) -> None:
        self._limit = -(-end // self._granule) * self._granule
        self.columns = min(self._limit, self._slots)
        self._grid = self._buffer[: self._rows * self.columns].reshape(self._rows, self.columns)
        self._grid.fill(0.0)
        self._written = self._grid[:0]
