from __future__ import annotations

import numpy as np

from fakes import Script, ScriptedEngine, scripted_model
from lade_edge.engines.protocol import StepResult
from lade_edge.runtime.config import Shape
from lade_edge.runtime.drafting.drafter import StepOutcome
from lade_edge.runtime.drafting.step_cost import StepCost, free
from lade_edge.runtime.drafting.tree_drafter import TreeDrafter
from lade_edge.runtime.drafting.window_source import WindowSource

SHAPE = Shape(window=2, ngram=3, guesses=0)  # three slots beside the root


def source() -> WindowSource:
    window = WindowSource(SHAPE, seed=0, eos=frozenset({9}))
    window.reset([7])
    window.learn([7, 1], 1)
    return window


def tokens(window: WindowSource, *context: int) -> list[int]:
    return [token for token, _ in window.propose(context)]


def test_the_longest_beginning_speaks_latest_first() -> None:
    window = source()
    window.rows[:] = [[1, 2], [3, 4]]
    window.advance([5, 6], [7, 1, 2], earned=0)
    assert tokens(window, 1) == [3]
    assert tokens(window, 8, 1, 3) == [5]
    assert tokens(window, 2, 4) == [6]
    assert tokens(window, 3) == []  # the middle of an n-gram is no beginning
    window.rows[:] = [[1, 2], [8, 4]]
    window.advance([5, 6], [7, 1, 2], earned=0)
    assert tokens(window, 1) == [8, 3]
    labels = [window.classes[kind].label for _, kind in window.propose((1,))]
    assert labels == ["1 of 3 tokens, 0", "1 of 3 tokens, 1"]


def test_a_new_request_forgets() -> None:
    window = source()
    window.rows[:] = [[1, 2], [3, 4]]
    window.advance([5, 6], [7, 1], earned=3)
    fresh = source()
    window.reset([7])
    assert tokens(window, 1) == []
    assert window.earned == fresh.earned


def fed(cost: StepCost, earned: float) -> TreeDrafter:
    window = source()
    drafter = TreeDrafter([], cost, stop_tokens=frozenset(), window=window)
    drafter.start([7, 1])
    window.earned = earned
    drafter.draft(1, 9)
    return drafter


def test_slots_are_given_while_they_earn_their_price() -> None:
    cost = StepCost({1: 1.0, 4: 1.3, 8: 2.0}, max_width=8)
    assert fed(cost, 0.29).window_rows is None
    rows = fed(cost, 0.31).window_rows
    assert rows is not None
    assert rows[0][0] == 1
    assert fed(free(8), 0.001).window_rows is not None


def test_no_room_no_window() -> None:
    assert fed(free(3), 5.0).window_rows is None


def test_only_tokens_that_no_other_source_had_are_its_earnings() -> None:
    window = source()
    window.rows[:] = [[1, 2], [3, 4]]
    window.advance([5, 6], [7, 1], earned=0)
    drafter = TreeDrafter([], free(8), stop_tokens=frozenset(), window=window)
    drafter._ids = [7, 1]
    window.earned = 1.0
    tree = drafter.draft(1, 9)
    assert tree.tokens == [1, 3, 5]
    result = StepResult(np.array([[3], [5], [6]]), np.ones((3, 1), np.float32))
    drafter.learn(StepOutcome([7, 1, 3, 5, 6], 3, [1, 2], result, [8, 8]))
    assert window.earned == 31 / 32 + 2 / 32


def test_a_window_where_width_is_free_gives_the_same_ids() -> None:
    engine = ScriptedEngine(Script(), capacity=128)
    model = scripted_model(engine=engine)
    plain = model.generate("abc", mode="plain", max_new_tokens=60)
    auto = model.generate("abc", mode="auto", cost="flat", max_width=16, max_new_tokens=60)
    assert auto.output_ids == plain.output_ids
    assert "window" in auto.stats.proposed
