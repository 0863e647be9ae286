"""Which tokens may be drawn: pure functions from scores to a mask.

A filter sees the scores that the one before it left, so probabilities are those among the tokens
still there. Every filter keeps at least one token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from lade_edge.engines.protocol import BoolArray, Float32Array
    from lade_edge.runtime.config import GenerationConfig

Filter = Callable[["Float32Array"], "BoolArray"]
"""From ``(n,)`` finite float32 scores, n >= 1, to ``(n,)`` bool: what may be drawn."""


def top_k(scores: Float32Array, *, count: int) -> BoolArray:
    """The ``count`` best tokens, and any as good as the last of them.

    Source: arXiv 1805.04833, section 5.4; transformers' TopKLogitsWarper.
    """
    if count >= len(scores):
        return np.ones(len(scores), dtype=np.bool_)
    place = len(scores) - count
    mask: BoolArray = scores >= np.partition(scores, place)[place]
    return mask


def top_p(scores: Float32Array, *, mass: float) -> BoolArray:
    """The fewest best tokens whose probabilities sum to ``mass``, and any as good as the last.

    Source: nucleus sampling, arXiv 1904.09751, section 3.1; transformers' TopPLogitsWarper.
    """
    shares = _shares(scores)
    # Tokens with at most an equal part of the rest each can't be in the nucleus: they go unsorted.
    best = np.sort(shares[shares > (1 - mass) / len(shares)])[::-1]
    count = int(np.searchsorted(np.cumsum(best), mass)) + 1
    mask: BoolArray = shares >= (best[:count].min() if len(best) else shares.max())
    return mask


def min_p(scores: Float32Array, *, share: float) -> BoolArray:
    """Tokens at least ``share`` times as probable as the best.

    Source: arXiv 2407.01082, section 3; transformers' MinPLogitsWarper.
    """
    mask: BoolArray = scores >= scores.max() + log(share)
    return mask


def typical_p(scores: Float32Array, *, mass: float) -> BoolArray:
    """The fewest tokens of most usual surprise, -log p nearest to the entropy, that sum to ``mass``.

    Source: arXiv 2202.00666, section 3; transformers' TypicalLogitsWarper.
    """
    shares = _shares(scores)
    best = scores.max()
    surprise = best - scores - np.log(shares.max())  # -log of the shares, some of which are 0
    distance = np.abs(surprise - (shares * surprise).sum())
    order = np.argsort(distance)
    last = min(int((np.cumsum(shares[order]) < mass).sum()), len(order) - 1)
    mask: BoolArray = distance <= distance[order[last]]
    return mask


def _shares(scores: Float32Array) -> npt.NDArray[np.float64]:
    """Probabilities, ``(n,)`` float64."""
    weights = np.exp(scores - scores.max())
    shares: npt.NDArray[np.float64] = weights / weights.sum(dtype=np.float64)
    return shares


def filters_for(settings: GenerationConfig) -> tuple[Filter, ...]:
    """The filters a request asks for, in transformers' order: top-k, top-p, min-p, typical-p."""
    found: list[Filter] = []
    if settings.top_k:
        found.append(partial(top_k, count=settings.top_k))
    if settings.top_p < 1:
        found.append(partial(top_p, mass=settings.top_p))
    if settings.min_p > 0:
        found.append(partial(min_p, share=settings.min_p))
    if settings.typical_p < 1:
        found.append(partial(typical_p, mass=settings.typical_p))
    return tuple(found)
