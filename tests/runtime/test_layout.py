from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import ScriptedEngine
from lade_edge.engines.protocol import BoolArray
from lade_edge.runtime.config import PLAIN, Shape
from lade_edge.runtime.drafting.tree import DraftTree
from lade_edge.runtime.layout import StepInput, StepLayout, visibility, window_parents

PAPER_ORDER = """
#.................... ##................... ###.................. ####.................
#####................ #....#............... ##....#.............. ###....#.............
####....#............ #####....#........... #....#....#.......... ##....#....#.........
###....#....#........ ####....#....#....... #####....#....#...... #..............#.....
#..............##.... #..............###... #.................#.. #.................##.
#.................###
"""
OUR_ORDER = """
#.................... ##................... ###.................. ####.................
#...#................ #...##............... #...###.............. #......#.............
#......##............ #......###........... #......####.......... #..........#.........
#......#....#........ #......##....#....... #......###....#...... #......####....#.....
#..........#....#.... #......#....#....#... #......##....#....#.. #......###....#....#.
#......####....#....#
"""
SHAPE = Shape(window=5, ngram=4, guesses=2)


def golden(text: str) -> BoolArray:
    return np.array([[mark == "#" for mark in row] for row in text.split()])


def tree_of(*chains: list[int], root: int = 100) -> DraftTree:
    tree = DraftTree()
    tree.reset(root, max_nodes=99, max_depth=99)
    for rank, chain in enumerate(chains, start=1):
        tree.add_chain(chain, 1.0 / rank, "x")
    tree.arrange()
    return tree


def layout_of(shape: Shape, **spec: int) -> StepLayout:
    return StepLayout(shape, ScriptedEngine(**spec).spec)  # type: ignore[arg-type]


def example(length: int = 40) -> StepInput:
    window = [[100, *range(101, 105)], [*range(111, 116)], [*range(121, 126)]]
    tree = tree_of([1, 2, 3], [4, 5, 6])
    return layout_of(SHAPE).arrange(tree, length, window)


def test_golden_mask_in_paper_order() -> None:
    candidates = [0, 15, 16, 0, 18, 19]
    mask = visibility([*window_parents(SHAPE), *candidates])
    assert np.array_equal(mask, golden(PAPER_ORDER))


def test_golden_step_in_our_order() -> None:
    tokens, positions, visible, rows = example()
    assert np.array_equal(visible, golden(OUR_ORDER))
    assert tokens == [
        *(100, 1, 2, 3, 4, 5, 6),
        *(101, 102, 103, 104),
        *(111, 112, 113, 114, 115),
        *(121, 122, 123, 124, 125),
    ]
    offsets = [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert [position - 40 for position in positions] == offsets
    assert rows.tolist() == [*range(7), *range(16, 21)]


def test_both_orders_name_the_same_tokens() -> None:
    """The orders are permutations of each other; the table of the algorithm page, column 2."""
    ours = [0, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 1, 2, 3, 4, 5, 6]
    assert np.array_equal(example().visible[np.ix_(ours, ours)], golden(PAPER_ORDER))


@given(st.integers(0, 20), st.integers(2, 8), st.integers(0, 13))
def test_every_width_follows_from_window_ngram_and_guesses(
    columns: int, ngram: int, guesses: int
) -> None:
    """Not only the usual triples: a full step has the shape's width, and no mask is narrower."""
    shape = Shape(window=columns, ngram=ngram, guesses=guesses)
    chains = [[1000 * guess + place for place in range(ngram - 1)] for guess in range(guesses)]
    window = [[7] * columns] * (ngram - 1) if columns else None
    step = layout_of(shape, max_width=shape.width).arrange(tree_of(*chains), 9, window)
    assert len(step.tokens) == len(step.positions) == shape.width
    assert step.visible.shape == (shape.width, shape.width)
    assert shape.width == (
        (ngram - 1) * (columns + guesses) if columns else 1 + (ngram - 1) * guesses
    )


def test_a_shared_prefix_takes_one_slot() -> None:
    window = [[1] * 5] * 3
    step = layout_of(SHAPE).arrange(tree_of([1, 2, 3], [1, 5, 6]), 9, window)
    assert len(step.tokens) == 20
    assert step.tokens[:6] == [100, 1, 2, 3, 5, 6]
    assert step.visible[4, :6].tolist() == [True, True, False, False, True, False]


def test_plans_are_kept_and_leave_nothing_behind() -> None:
    layout = layout_of(SHAPE)
    window = [[1] * 5] * 3
    fresh = layout_of(SHAPE).arrange(tree_of([1, 2], [3]), 4, window)
    layout.arrange(tree_of([1, 2, 3]), 4, window)
    again = layout.arrange(tree_of([1, 2], [3]), 4, window)
    assert again.visible is fresh.visible is layout.arrange(tree_of([7, 8], [9]), 5, window).visible
    assert not again.visible.flags.writeable
    again = layout.arrange(tree_of([1, 2], [3]), 4, window)
    assert again[:2] == fresh[:2]
    assert np.array_equal(again.visible, fresh.visible)
    assert np.array_equal(again.rows, fresh.rows)


def test_pads_see_only_themselves_and_are_seen_by_nobody() -> None:
    layout = layout_of(PLAIN, plain_width=4)
    step = layout.arrange(tree_of([1]), 7, None)
    assert step.tokens[:2] == [100, 1]
    assert step.positions == [7, 8, 7, 7]
    expected = np.eye(4, dtype=np.bool_)
    expected[1, 0] = True
    assert np.array_equal(step.visible, expected)
    assert step.rows.tolist() == [0, 1]
    step = layout.arrange(tree_of(), 8, None)
    assert np.array_equal(step.visible, np.eye(4))
    assert step.positions == [8, 8, 8, 8]
    assert step.rows.tolist() == [0]


def test_pads_never_make_a_step_too_wide() -> None:
    step = layout_of(PLAIN, plain_width=8, max_width=2).arrange(tree_of(), 0, None)
    assert len(step.tokens) == 2


def test_pads_come_between_tree_and_window() -> None:
    shape = Shape(window=2, ngram=2, guesses=1)
    step = layout_of(shape, plain_width=4).arrange(tree_of([1]), 3, [[100, 5]])
    assert step.tokens == [100, 1, 100, 5]
    assert step.positions == [3, 4, 3, 4]
    assert step.visible[3].tolist() == [True, False, False, True]
    assert step.rows.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("columns", "ngram", "rows", "newest"),
    [
        (5, 4, 12, [7, 8, 9, 10, 11]),
        (3, 2, 9, [0, 7, 8]),
        (1, 2, 7, [0]),
        (1, 3, 8, [7]),
        (0, 3, 7, []),
    ],
)
def test_results_of_the_last_window_row(
    columns: int, ngram: int, rows: int, newest: list[int]
) -> None:
    shape = Shape(window=columns, ngram=ngram, guesses=2)
    layout = layout_of(shape)
    window = [[0] * columns] * (ngram - 1)
    step = layout.arrange(tree_of([1, 2, 3], [4, 5, 6]), 3, window if columns else None)
    assert len(step.rows) == rows
    assert layout.newest_row([*range(rows)], 7) == newest


def test_window_positions_are_clamped_to_the_models() -> None:
    layout = layout_of(SHAPE, capacity=44, max_position=44)
    step = layout.arrange(tree_of([1, 2]), 41, [[1] * 5] * 3)
    assert step.positions[:3] == [41, 42, 43]
    assert max(step.positions) == 43
