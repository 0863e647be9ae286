from __future__ import annotations

import numpy as np
import pytest

from lade_edge.runtime.drafting.sources import DraftSource, Rows
from lade_edge.runtime.drafting.successors import SuccessorSource
from lade_edge.runtime.drafting.suffix import SuffixSource


def guesses(source: DraftSource, *context: int) -> list[tuple[int, str]]:
    return [(token, source.classes[kind].label) for token, kind in source.propose(context)]


def tokens(source: DraftSource, *context: int) -> list[int]:
    return [token for token, _ in source.propose(context)]


def test_the_longest_match_speaks_first_and_a_shorter_one_adds() -> None:
    source = SuffixSource()
    source.reset([1, 2, 3, 4, 9, 2, 3, 5])
    assert guesses(source, 1, 2, 3) == [
        (4, "longest match 3, once, 0"),
        (5, "shorter match 2, mixed, 0"),
    ]


def test_the_latest_continuation_comes_first() -> None:
    source = SuffixSource()
    source.reset([7, 1, 7, 2, 7, 3, 7, 4])
    assert tokens(source, 7) == [4, 3, 2]
    source.learn([7, 1, 7, 2, 7, 3, 7, 4, 7, 2], 2)
    assert tokens(source, 7) == [2, 4, 3]


def test_a_context_that_always_went_on_alike_is_told_apart() -> None:
    source = SuffixSource()
    source.reset([1, 2, 0, 1, 2])
    assert guesses(source, 1) == [(2, "longest match 1, always, 0")]
    assert guesses(source, 2) == [(0, "longest match 1, once, 0")]


def test_unknown_context_gives_nothing() -> None:
    source = SuffixSource()
    source.reset([1, 2])
    assert source.propose((2,)) == []
    source.reset([3])
    assert source.propose((1,)) == []


def test_learning_bit_by_bit_equals_learning_at_once() -> None:
    ids = [1, 2, 3, 1, 2, 4, 1, 2, 3, 3, 1, 2]
    whole, parts = SuffixSource(), SuffixSource()
    whole.reset(ids)
    parts.reset(ids[:3])
    for end, count in ((5, 2), (6, 1), (10, 4), (12, 2)):
        parts.learn(ids[:end], count)
    for end in range(1, len(ids)):
        assert whole.propose(tuple(ids[:end])) == parts.propose(tuple(ids[:end]))


def rows(*seen: tuple[tuple[int, ...], list[tuple[int, float]]]) -> Rows:
    return Rows(
        [context for context, _ in seen],
        np.array([[token for token, _ in best] for _, best in seen]),
        np.array([[share for _, share in best] for _, best in seen], np.float32),
    )


def test_the_longest_known_context_of_a_row_is_used() -> None:
    source = SuccessorSource()
    source.reset([])
    source.observe(
        rows(
            ((5, 6, 7), [(1, 0.7), (2, 0.2), (3, 0.005)]), ((9, 7), [(4, 0.95), (0, 0.0), (0, 0.0)])
        )
    )
    assert guesses(source, 5, 6, 7) == [
        (1, "context 3, rank 0, share below 0.9"),
        (2, "context 3, rank 1, share below 0.3"),
    ]
    assert guesses(source, 0, 6, 7)[0] == (1, "context 2, rank 0, share below 0.9")
    assert guesses(source, 0, 0, 7) == [(4, "context 1, rank 0, share below 1.1")]
    assert source.propose((0, 0, 8)) == []


def test_a_newer_row_takes_the_place_of_an_older_one() -> None:
    source = SuccessorSource()
    source.reset([])
    source.observe(rows(((7,), [(1, 1.0)])))
    source.observe(rows(((7,), [(2, 1.0)])))
    assert tokens(source, 7) == [2]
    source.reset([])
    assert source.propose((7,)) == []


@pytest.mark.parametrize("source", [SuffixSource(), SuccessorSource()])
def test_priors_are_chances_and_labels_differ(source: DraftSource) -> None:
    assert all(0 < kind.prior < 1 for kind in source.classes)
    labels = [kind.label for kind in source.classes]
    assert len(set(labels)) == len(labels)
