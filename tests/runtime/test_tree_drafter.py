from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lade_edge.engines.protocol import StepResult
from lade_edge.runtime.drafting.drafter import StepOutcome
from lade_edge.runtime.drafting.estimates import Estimates
from lade_edge.runtime.drafting.sources import ProposalClass, Rows
from lade_edge.runtime.drafting.step_cost import StepCost, free
from lade_edge.runtime.drafting.suffix import SuffixSource
from lade_edge.runtime.drafting.tree_drafter import TreeDrafter


class TableSource:
    """Proposes what a table says, with one class per proposal rank."""

    def __init__(self, table: dict[int, list[int]], priors: Sequence[float], name: str) -> None:
        self.table = table
        self.rows: list[tuple[tuple[int, ...], int]] = []
        self.classes = [
            ProposalClass(source=name, label=str(rank), prior=prior)
            for rank, prior in enumerate(priors)
        ]

    def reset(self, prompt: Sequence[int]) -> None:
        self.rows = []

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(token, rank) for rank, token in enumerate(self.table.get(context[-1], []))]

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        pass

    def observe(self, rows: Rows) -> None:
        self.rows += zip(rows.contexts, rows.top_ids[:, 0].tolist(), strict=True)


def outcome(ids: list[int], num_new: int, path: list[int], rows: list[list[int]]) -> StepOutcome:
    logits = np.tile(np.array([2.0, 1.0], np.float32), (len(rows), 1))
    return StepOutcome(ids, num_new, path, StepResult(np.array(rows, np.int64), logits), [])


def test_likelier_nodes_come_first_and_shared_proposals_once() -> None:
    a = TableSource({1: [2, 3], 2: [4]}, (0.6, 0.3), "a")
    b = TableSource({1: [3]}, (0.5,), "b")
    drafter = TreeDrafter([a, b], free(4), stop_tokens=frozenset())
    drafter.start([9, 1])
    tree = drafter.draft(1, 9)
    # 2 at 0.6, 3 at the better of 0.3 and 0.5, scaled by 1.1 in sum; 4 below 2
    assert tree.tokens == [1, 2, 4, 3]
    assert tree.origins == ["", "a", "a", "b"]
    assert [round(score, 3) for score in tree.scores] == [1.0, 0.545, 0.327, 0.455]
    assert tree.main_length == 2


def test_a_chain_only_drafter_follows_the_likeliest_child() -> None:
    source = TableSource({1: [2, 3], 2: [4, 5], 4: [6]}, (0.9, 0.8), "a")
    drafter = TreeDrafter([source], free(9), stop_tokens=frozenset(), chain_only=True)
    drafter.start([1])
    tree = drafter.draft(1, 9)
    assert tree.tokens == [1, 2, 4, 6]
    assert tree.main_length == 3


def test_limits_and_stop_tokens() -> None:
    source = TableSource({1: [2], 2: [3], 3: [4]}, (0.9,), "a")
    drafter = TreeDrafter([source], free(9), stop_tokens=frozenset({3}))
    drafter.start([1])
    assert drafter.draft(1, 9).tokens == [1, 2]
    assert drafter.draft(1, 0).tokens == [1]


def test_a_source_that_is_wrong_is_no_longer_fed_and_is_again_once_it_is_right() -> None:
    source = TableSource({1: [2]}, (0.5,), "a")
    drafter = TreeDrafter(
        [source], StepCost({1: 10.0, 2: 13.0}, max_width=2), stop_tokens=frozenset()
    )
    drafter.start([1])
    ids = [1]
    widths = []
    for truth in [5] * 40 + [2] * 40:
        tree = drafter.draft(1, 9)
        widths.append(len(tree))
        path = [1] if len(tree) > 1 and truth == 2 else []
        ids += [truth, 1] if path else [truth]
        drafter.learn(outcome(ids, len(path) + 1, path, [[truth, 0], [1, 0]]))
        ids.append(1)
        drafter._ids = ids
    assert widths[0] == 2
    assert widths[39] == 1
    assert widths[-1] == 2


def test_every_row_is_observed_with_its_own_context() -> None:
    source = TableSource({1: [2, 3], 2: [4]}, (0.6, 0.3), "a")
    drafter = TreeDrafter([source], free(4), stop_tokens=frozenset())
    drafter.start([8, 9, 1])
    tree = drafter.draft(1, 9)
    assert tree.tokens == [1, 2, 4, 3]
    drafter.learn(outcome([8, 9, 1, 7], 1, [], [[7, 0], [11, 0], [12, 0], [13, 0]]))
    assert source.rows == [
        ((8, 9, 1), 7),
        ((8, 9, 1, 2), 11),
        ((8, 9, 1, 2, 4), 12),
        ((8, 9, 1, 3), 13),
    ]


def test_a_repeated_text_is_drafted_far_ahead() -> None:
    drafter = TreeDrafter([SuffixSource()], free(8), stop_tokens=frozenset())
    drafter.start([*range(20), 3, 4, 5])
    assert drafter.draft(5, 20).tokens[:6] == [5, 6, 7, 8, 9, 10]


def test_estimates_move_from_prior_to_what_was_seen() -> None:
    estimates = Estimates([0.5, 0.1])
    for _ in range(200):
        estimates.record((0,), hit=False)
        estimates.record((1,), hit=True)
    assert estimates.chances[0] < 0.05
    assert estimates.chances[1] > 0.95
    estimates.reset()
    assert estimates.chances == [0.5, 0.1]
