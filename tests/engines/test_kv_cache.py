from __future__ import annotations

import numpy as np
import pytest

from lade_edge.engines import CapacityError
from lade_edge.engines.kv_cache import HostKVCache


def numbered() -> HostKVCache:
    cache = HostKVCache(2, 3, 10, 4, np.float32)
    cache.data[:] = np.arange(10)[:, None]  # every row holds its slot's number
    return cache


@pytest.mark.parametrize(
    ("slots", "rows"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ([0, 3, 4], [0, 1, 2, 5, 6, 5, 6, 7, 8, 9]),
        ([0, 2, 3, 6], [0, 1, 2, 4, 5, 8, 6, 7, 8, 9]),
    ],
)
def test_accepted_rows_move_together(slots: list[int], rows: list[int]) -> None:
    cache = numbered()
    cache.compact(2, slots)
    assert np.array_equal(cache.data, np.broadcast_to(np.array(rows)[:, None], cache.data.shape))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_keeping_nothing_or_a_chain_in_place_touches_nothing(count: int) -> None:
    cache = numbered()
    cache.data.flags.writeable = False
    cache.compact(2, range(count))


def test_layers_are_views() -> None:
    cache = HostKVCache(2, 3, 10, 4, np.float16)
    cache.keys(1)[:] = 1
    cache.values(0)[:] = 2
    assert [float(plane.max()) for plane in cache.data] == [0, 2, 1, 0]


def test_too_large_says_how_much() -> None:
    with pytest.raises(CapacityError, match=r"takes [\d,]+ MB.*lower --capacity"):
        HostKVCache(1000, 1000, 10**9, 1000, np.float32)
