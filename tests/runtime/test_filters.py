from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade_edge.engines.protocol import Float32Array
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.filters import Filter, filters_for, min_p, top_k, top_p, typical_p

SHARES = (0.5, 0.25, 0.15, 0.1)
SCORES = np.log(np.array(SHARES, dtype=np.float32))


def kept(mask: Any) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def transformers_kept(name: str, argument: float, scores: Float32Array) -> list[int]:
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    module = pytest.importorskip(
        "transformers.generation.logits_process", reason="compares with transformers"
    )
    found = getattr(module, name)(argument)(None, torch.from_numpy(scores.copy())[None])
    return kept(torch.isfinite(found[0]).numpy())


@st.composite
def rows(draw: st.DrawFn) -> Float32Array:
    """Flat to peaked rows of distinct scores, small and as wide as a small vocabulary."""
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    size = draw(st.sampled_from([1, 2, 7, 300, 5000]))
    return (generator.normal(0, draw(st.sampled_from([0.1, 1, 4])), size)).astype(np.float32)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (top_k(SCORES, count=1), [0]),
        (top_k(SCORES, count=3), [0, 1, 2]),
        (top_k(SCORES, count=9), [0, 1, 2, 3]),
        (
            top_k(np.array([1, 3, 2, 2], dtype=np.float32), count=2),
            [1, 2, 3],
        ),  # as good as the last: stays
        (top_p(SCORES, mass=0), [0]),
        (top_p(np.zeros(3, dtype=np.float32), mass=0.1), [0, 1, 2]),
        (top_p(SCORES, mass=0.4), [0]),
        (top_p(SCORES, mass=0.6), [0, 1]),
        (top_p(SCORES, mass=0.8), [0, 1, 2]),
        (top_p(SCORES, mass=0.95), [0, 1, 2, 3]),
        (min_p(SCORES, share=1), [0]),
        (min_p(SCORES, share=0.4), [0, 1]),
        (min_p(SCORES, share=0.25), [0, 1, 2]),
        (min_p(SCORES, share=0.1), [0, 1, 2, 3]),
        # entropy 1.21; surprises 0.69, 1.39, 1.90, 2.30: nearest is the second token
        (typical_p(SCORES, mass=0.2), [1]),
        (typical_p(SCORES, mass=0.3), [0, 1]),
        (typical_p(SCORES, mass=0.8), [0, 1, 2]),
    ],
)
def test_what_stays(mask: Any, expected: list[int]) -> None:
    assert kept(mask) == expected


@given(rows(), st.integers(1, 400))
def test_top_k_is_that_of_transformers(scores: Float32Array, count: int) -> None:
    assert kept(top_k(scores, count=count)) == transformers_kept("TopKLogitsWarper", count, scores)


@given(rows(), st.floats(0.01, 0.99))
def test_top_p_is_that_of_transformers(scores: Float32Array, mass: float) -> None:
    ours, theirs = (
        kept(top_p(scores, mass=mass)),
        transformers_kept("TopPLogitsWarper", mass, scores),
    )
    check_alike(scores, ours, theirs)


@given(rows(), st.floats(0.01, 1))
def test_min_p_is_that_of_transformers(scores: Float32Array, share: float) -> None:
    check_alike(
        scores,
        kept(min_p(scores, share=share)),
        transformers_kept("MinPLogitsWarper", share, scores),
    )


@given(rows(), st.floats(0.01, 0.99))
def test_typical_p_is_that_of_transformers(scores: Float32Array, mass: float) -> None:
    check_alike(
        scores,
        kept(typical_p(scores, mass=mass)),
        transformers_kept("TypicalLogitsWarper", mass, scores),
    )


def check_alike(scores: Float32Array, ours: list[int], theirs: list[int]) -> None:
    """Equal, but for tokens at the very edge, where sums in float32 and float64 part."""
    differing = {*ours} ^ {*theirs}
    shares = np.exp(scores - scores.max(), dtype=np.float64)
    shares /= shares.sum()
    assert len(differing) <= max(1, len(scores) // 1000)
    assert shares[list(differing)].sum() < 1 / 1000 or not differing


def test_filters_come_in_the_documented_order_and_only_when_asked_for() -> None:
    def names(**options: Any) -> list[str]:
        filters: tuple[Filter, ...] = filters_for(GenerationConfig(**options))
        return [found.func.__name__ for found in filters]  # type: ignore[attr-defined]

    assert names() == []
    asked = {"typical_p": 0.9, "min_p": 0.1, "top_p": 0.9, "top_k": 5}
    assert names(**asked) == ["top_k", "top_p", "min_p", "typical_p"]


@given(rows(), st.integers(1, 50), st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1))
def test_something_always_stays(
    scores: Float32Array, count: int, mass: float, share: float, typical: float
) -> None:
    settings = GenerationConfig(top_k=count, top_p=mass, min_p=share, typical_p=typical)
    for keep in filters_for(settings):
        scores = scores[keep(scores)]
        assert len(scores) >= 1
