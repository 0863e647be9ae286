from __future__ import annotations

import numpy as np

from lade_edge.engines.protocol import StepResult
from lade_edge.runtime.config import PLAIN, Shape
from lade_edge.runtime.drafting.drafter import LookaheadDrafter, StepOutcome


def drafter_of(shape: Shape) -> LookaheadDrafter:
    return LookaheadDrafter(shape, seed=0, eos=frozenset({9}), stop_tokens=frozenset({9}))


def outcome(ids: list[int], num_new: int, newest: list[int]) -> StepOutcome:
    nothing = StepResult(np.zeros((0, 4), np.int64), np.zeros((0, 4), np.float32))
    return StepOutcome(ids, num_new, [], nothing, newest)


def test_plain_decoding_has_a_root_and_nothing_else() -> None:
    drafter = drafter_of(PLAIN)
    drafter.start([1, 2, 1, 2])
    drafter.learn(outcome([1, 2, 1, 2, 1], 1, []))
    assert drafter.draft(1, 9).tokens == [1]
    assert drafter.window_rows is None


def test_prompt_and_first_token_are_known_from_the_start() -> None:
    drafter = drafter_of(Shape(window=0, ngram=3, guesses=2))
    drafter.start([1, 2, 3, 1, 2, 4])
    tree = drafter.draft(1, 9)
    assert tree.tokens == [1, 2, 4, 3]
    assert tree.origins[1:] == ["output", "output", "prompt"]


def test_window_ngrams_go_in_before_those_of_the_output() -> None:
    drafter = drafter_of(Shape(window=1, ngram=2, guesses=4))
    drafter.start([5, 1])
    drafter.learn(outcome([5, 1, 2], 1, [3]))
    tree = drafter.draft(1, 9)
    assert tree.tokens == [1, 2, 3]
    assert tree.origins[1:] == ["output", "window"]


def test_the_window_follows_the_last_token() -> None:
    drafter = drafter_of(Shape(window=2, ngram=3, guesses=1))
    drafter.start([5, 6])
    assert drafter.window_rows == [[6, 5], [5, 5]]
    drafter.learn(outcome([5, 6, 7, 8], 2, [20, 21]))
    assert drafter.window_rows == [[8, 5], [20, 21]]
