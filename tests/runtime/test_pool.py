from __future__ import annotations

from lade_edge.runtime.config import Shape
from lade_edge.runtime.drafting.pool import NgramPool
from lade_edge.runtime.drafting.tree import DraftTree


def pool_of(ngram: int, guesses: int, max_keys: int = 99) -> NgramPool:
    return NgramPool(Shape(window=0, ngram=ngram, guesses=guesses), max_keys=max_keys)


def test_newest_first_and_the_oldest_goes() -> None:
    pool = pool_of(3, 2)
    for continuation in ((1, 1), (2, 2), (3, 3)):
        pool.insert(0, continuation, "x")
    assert pool.lookup(0) == [(3, 3), (2, 2)]


def test_inserting_again_makes_newest() -> None:
    pool = pool_of(3, 2)
    for continuation in ((1, 1), (2, 2), (1, 1), (3, 3)):
        pool.insert(0, continuation, "x")
    assert pool.lookup(0) == [(3, 3), (1, 1)]


def test_looking_up_changes_nothing() -> None:
    pool = pool_of(3, 2)
    pool.insert(0, (1, 1), "x")
    pool.insert(0, (2, 2), "x")
    pool.lookup(0)
    pool.insert(0, (3, 3), "x")
    assert pool.lookup(0) == [(3, 3), (2, 2)]


def test_the_key_least_recently_inserted_goes() -> None:
    pool = pool_of(2, 2, max_keys=2)
    for key in (1, 2, 1, 3):
        pool.insert(key, (key,), "x")
    assert len(pool) == 2
    assert pool.lookup(2) == []
    assert pool.lookup(1) == [(1,)]


def test_every_ngram_of_the_prompt_then_those_ending_in_new_tokens() -> None:
    pool = pool_of(3, 9)
    pool.reset([1, 2, 3, 1, 2])
    assert pool.lookup(1) == [(2, 3)]
    assert pool.lookup(2) == [(3, 1)]
    assert pool.lookup(3) == [(1, 2)]
    pool.learn([1, 2, 3, 1, 2, 7, 8], 2)
    assert pool.lookup(1) == [(2, 7), (2, 3)]
    assert pool.lookup(2) == [(7, 8), (3, 1)]
    pool.learn([1], 1)
    pool.reset([4])
    assert len(pool) == 0


def test_ngrams_learnt_before_are_not_made_newest() -> None:
    pool = pool_of(2, 9)
    pool.learn([1, 2], 1)
    pool.insert(1, (3,), "window")
    pool.learn([1, 2, 5], 1)
    assert pool.lookup(1) == [(3,), (2,)]


def test_no_guesses_means_no_pool() -> None:
    pool = pool_of(2, 0)
    pool.reset([1, 2, 1, 2])
    assert len(pool) == 0


def test_proposals_carry_their_last_origin() -> None:
    pool = pool_of(3, 3)
    pool.reset([1, 2, 3])
    pool.insert(1, (2, 4), "window")
    pool.insert(1, (2, 3), "output")
    tree = DraftTree()
    tree.reset(1, max_nodes=9, max_depth=9)
    pool.propose(tree)
    assert tree.tokens == [1, 2, 3, 4]
    assert tree.origins[1:] == ["output", "output", "window"]
    tree.reset(5, max_nodes=9, max_depth=9)
    pool.propose(tree)
    assert len(tree) == 1
