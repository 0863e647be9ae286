"""KV cache memory on a device: one allocation, per-layer addresses, rows moved in strided copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lade_edge.engines.cuda_runtime import CudaRuntime


class Move(NamedTuple):
    """Rows ``source .. source+rows-1`` that go to ``target`` and after."""

    source: int
    target: int
    rows: int


def moves(slots: Sequence[int], *, within: bool) -> list[Move]:
    """The copies that bring step rows ``slots`` to rows 0, 1, 2, ...

    Args:
        slots: Ascending, ``slots[i] >= i``.
        within: Source and target are the same memory: rows in place stay, and no copy overlaps
            itself, since a device copies in no particular order.

    Returns:
        Copies, to be made in order.
    """
    found: list[Move] = []
    for target, source in enumerate(slots):
        if within and source == target:
            continue
        last = found[-1] if found else None
        if (
            last is not None
            and source == last.source + last.rows
            and target == last.target + last.rows
            and not (within and last.rows >= last.source - last.target)
        ):
            found[-1] = last._replace(rows=last.rows + 1)
        else:
            found.append(Move(source, target, 1))
    return found


class DeviceKVCache:
    """All layers' keys and values in one device allocation, ``(2 L, H_kv, S, D)``, zeroed.

    Args:
        cuda: Runtime that owns the memory.
        num_layers: Layers with a cache.
        num_kv_heads: ``H_kv``.
        num_slots: ``S``.
        head_size: ``D``.
        dtype: float32 or float16.

    Raises:
        CapacityError: If the memory can't be had.
    """

    def __init__(
        self,
        cuda: CudaRuntime,
        num_layers: int,
        num_kv_heads: int,
        num_slots: int,
        head_size: int,
        dtype: npt.DTypeLike,
    ) -> None:
        self._cuda = cuda
        self.num_layers = num_layers
        self.shape = (1, num_kv_heads, num_slots, head_size)
        self.row_bytes = head_size * np.dtype(dtype).itemsize
        self._plane_bytes = num_slots * self.row_bytes
        self._planes = 2 * num_layers * num_kv_heads
        self._layer_bytes = num_kv_heads * self._plane_bytes
        self.num_bytes = self._planes * self._plane_bytes
        self._address = cuda.allocate(self.num_bytes, f"a KV cache of {num_slots} slots")

    def address(self, kind: str, layer: int) -> int:
        """Address of ``k`` or ``v`` of a layer, ``(1, H_kv, S, D)``."""
        return self._address + (2 * layer + (kind == "v")) * self._layer_bytes

    def compact(self, start: int, slots: Sequence[int]) -> None:
        """Queue the copies of rows ``start + slots[i]`` to ``start + i`` in every layer."""
        for move in moves(slots, within=True):
            self._copy(self._address, self._plane_bytes, start + move.source, start, move)

    def take(self, start: int, rows: int, width: int, slots: Sequence[int]) -> None:
        """Queue the copies of a step's rows ``slots[i]`` to ``start + i`` in every layer.

        Args:
            start: First slot written.
            rows: Address of ``(2 L, H_kv, width, D)``.
            width: Tokens of the step as it ran.
            slots: Rows of the step, ascending.
        """
        for move in moves(slots, within=False):
            self._copy(rows, width * self.row_bytes, move.source, start, move)

    def _copy(self, source: int, pitch: int, row: int, start: int, move: Move) -> None:
        self._cuda.copy_rows(
            self._address + (start + move.target) * self.row_bytes,
            self._plane_bytes,
            source + row * self.row_bytes,
            pitch,
            move.rows * self.row_bytes,
            self._planes,
        )
