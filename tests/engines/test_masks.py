from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade_edge.engines.errors import CapacityError
from lade_edge.engines.masks import GRANULE, MASKED, MaskWriter, StepMask


def seen(mask: np.ndarray) -> list[list[int]]:
    assert set(np.unique(mask)) <= {0.0, MASKED}
    return [np.flatnonzero(row == 0.0).tolist() for row in mask]


def tree() -> tuple[np.ndarray, np.ndarray]:
    """Root, a child and a grandchild, and a second child."""
    visible = np.eye(4, dtype=bool)
    visible[1, 0] = visible[2, :2] = visible[3, 0] = True
    return visible, np.array([6, 7, 8, 7])


def test_committed_slots_and_ancestors_are_seen() -> None:
    visible, positions = tree()
    mask = np.full((4, 12), 7.0, np.float32)
    MaskWriter(np.float32).write(mask, 6, visible, positions)
    prefix = list(range(6))
    assert seen(mask) == [[*prefix, 6], [*prefix, 6, 7], [*prefix, 6, 7, 8], [*prefix, 6, 9]]


def test_a_window_counts_positions_not_slots() -> None:
    visible, positions = tree()
    mask = np.full((4, 10), 7.0, np.float16)
    MaskWriter(np.float16, 3).write(mask, 6, visible, positions)
    # the second child stands in slot 9 at position 7: it sees positions 5, 6 and 7
    assert seen(mask) == [[4, 5, 6], [5, 6, 7], [6, 7, 8], [5, 6, 9]]


def test_a_window_shorter_than_the_step() -> None:
    visible = np.tri(5, dtype=bool)
    mask = np.zeros((5, 7), np.float32)
    MaskWriter(np.float32, 2).write(mask, 2, visible, np.arange(2, 7))
    assert seen(mask) == [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]


def test_every_row_sees_itself() -> None:
    visible = np.eye(3, dtype=bool)
    mask = np.zeros((3, 9), np.float32)
    MaskWriter(np.float32, 1).write(mask, 5, visible, np.array([5, 5, 5]))
    assert seen(mask) == [[5], [6], [7]]


def test_only_read_only_blocks_are_remembered() -> None:
    visible, positions = tree()
    writer = MaskWriter(np.float32)
    masks = [np.zeros((4, 10), np.float32) for _ in range(3)]
    writer.write(masks[0], 6, visible, positions)
    visible[3, 0] = False
    visible.flags.writeable = False
    writer.write(masks[1], 6, visible, positions)
    writer.write(masks[2], 6, visible, positions)
    assert seen(masks[0])[3] == [0, 1, 2, 3, 4, 5, 6, 9]
    assert seen(masks[1])[3] == seen(masks[2])[3] == [0, 1, 2, 3, 4, 5, 9]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 700), st.integers(1, 12), st.booleans()), min_size=1, max_size=12
    ),
    window=st.sampled_from([None, 5]),
    whole=st.booleans(),
)
def test_a_kept_mask_equals_a_fresh_one(
    steps: list[tuple[int, int, bool]], window: int | None, whole: bool
) -> None:
    """Whatever came before, growing, shrinking, narrower or wider."""
    slots = 712
    mask = StepMask(np.float32, 12, slots, window=window, whole=whole)
    blocks = {}
    for width in range(1, 13):
        for chain in (False, True):
            blocks[width, chain] = np.tri(width, dtype=bool) if chain else np.eye(width, dtype=bool)
            blocks[width, chain].flags.writeable = False
    for length, width, chain in steps:
        visible, end = blocks[width, chain], length + width
        positions = length + np.arange(width) * chain
        mask.write(length, visible, positions)
        read = slots if whole else end
        fresh = np.full((width, read), 7.0, np.float32)
        MaskWriter(np.float32, window).write(fresh, length, visible, positions)
        assert end <= mask.columns <= slots
        assert mask.view(width).flags.c_contiguous
        np.testing.assert_array_equal(mask.view(width)[0, 0, :, :read], fresh)


def test_a_mask_keeps_its_length_while_steps_go_back_and_forth_over_its_end() -> None:
    mask = StepMask(np.float32, 20, 1000)
    lengths = []
    for length in range(240, 270):
        for width in (2, 20):
            mask.write(length, np.eye(width, dtype=bool), np.full(width, length))
            lengths.append(mask.columns)
    assert sorted(set(lengths)) == [GRANULE, 2 * GRANULE]
    assert lengths == sorted(lengths)


def test_a_mask_that_cannot_be_allocated_names_its_size_and_the_flag() -> None:
    with pytest.raises(CapacityError, match=r"takes [\d,]+ MB.*lower --capacity"):
        StepMask(np.float32, 256, 2**50)
