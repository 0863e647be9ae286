"""KV cache memory on the host: allocated once, written in place, trimmed by moving a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.errors import CapacityError


class HostKVCache:
    """All layers' keys and values in one allocation.

    Args:
        num_layers: Layers with a cache.
        num_kv_heads: ``H_kv``.
        num_slots: ``S``, rows per head: capacity plus scratch rows of the widest step.
        head_size: ``D``.
        dtype: float32, float16 or int8.

    Raises:
        CapacityError: If the memory can't be had.

    Attributes:
        data: ``(2 L, H_kv, S, D)``; keys of layer i at ``2 i``, values at ``2 i + 1``. Starts as
            zeros, so a masked row can never bring NaN into a weighted sum.
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        num_slots: int,
        head_size: int,
        dtype: npt.DTypeLike,
    ) -> None:
        shape = (2 * num_layers, num_kv_heads, num_slots, head_size)
        try:
            self.data: npt.NDArray[Any] = np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:
            size_mb = np.prod(shape, dtype=np.float64) * np.dtype(dtype).itemsize / 1e6
            raise CapacityError(
                f"a KV cache of {num_slots} slots takes {size_mb:,.0f} MB, more than can be "
                "allocated; lower --capacity"
            ) from error

    def keys(self, layer: int) -> npt.NDArray[Any]:
        """View ``(H_kv, S, D)`` of a layer's keys."""
        view: npt.NDArray[Any] = self.data[2 * layer]
        return view

    def values(self, layer: int) -> npt.NDArray[Any]:
        """View ``(H_kv, S, D)`` of a layer's values."""
        view: npt.NDArray[Any] = self.data[2 * layer + 1]
        return view

    def compact(self, start: int, slots: Sequence[int]) -> None:
        """Move rows ``start + slots[i]`` to ``start + i`` in every layer.

        Args:
            start: First slot of the step.
            slots: Ascending, with ``slots[i] >= i``; a prefix in place is not touched.
        """
        count = len(slots)
        if not count or slots[-1] == count - 1:  # ascending, so all of them are in place
            return
        first = 0
        while slots[first] == first:
            first += 1
        moved = [start + slot for slot in slots[first:]]
        self.data[:, :, start + first : start + count] = self.data[:, :, moved]
