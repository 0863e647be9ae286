"""What a step must move at least, and how fast this machine moves it: the limit of plain decoding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lade_edge.runtime.model import Model

_BLOCK = 32_000_000  # float32 numbers a thread reads: 128 MB, more than most caches hold
_READS = 5


def static_card(model: Model, threads: int) -> dict[str, Any]:
    """The bound by memory.

    Args:
        model: Loaded model.
        threads: Threads to read memory with, as many as steps run on.

    Returns:
        ``weight_mb``: megabytes of weights, which every step reads but for rows of an embedding
        table; None if unknown. ``bandwidth_gb_s``: what reading memory reaches here.
        ``plain_limit_tokens_per_second``: bandwidth over weights; caches can beat it.
    """
    bandwidth = read_bandwidth_gb_s(threads)
    weight_mb = None if model.weight_bytes is None else model.weight_bytes / 1e6
    return {
        "threads": threads,
        "weight_mb": weight_mb,
        "bandwidth_gb_s": bandwidth,
        "plain_limit_tokens_per_second": 1e3 * bandwidth / weight_mb if weight_mb else None,
    }


def read_bandwidth_gb_s(threads: int) -> float:
    """The best of several passes in which each thread reads a block of its own, in GB/s."""
    blocks = [np.ones(_BLOCK, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_READS):
            started = perf_counter()
            list(pool.map(np.max, blocks))
            best = max(best, sum(block.nbytes for block in blocks) / (perf_counter() - started))
    return best / 1e9
