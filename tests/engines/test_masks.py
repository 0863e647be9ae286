from __future__ import annotations

import numpy as np
import pytest

from lade_edge.engines.masks import MASKED, fill_mask


def seen(mask: np.ndarray) -> list[list[int]]:
    assert set(np.unique(mask)) <= {0.0, MASKED}
    return [np.flatnonzero(row == 0.0).tolist() for row in mask]


def tree() -> tuple[np.ndarray, np.ndarray]:
    """Root, a child and a grandchild, and a second child."""
    visible = np.eye(4, dtype=bool)
    visible[1, 0] = visible[2, :2] = visible[3, 0] = True
    return visible, np.array([6, 7, 8, 7])


def test_committed_slots_and_ancestors_are_seen() -> None:
    visible, _ = tree()
    mask = np.full((4, 12), 7.0, np.float32)
    fill_mask(mask, 6, visible)
    prefix = list(range(6))
    assert seen(mask) == [[*prefix, 6], [*prefix, 6, 7], [*prefix, 6, 7, 8], [*prefix, 6, 9]]


def test_a_window_counts_positions_not_slots() -> None:
    visible, positions = tree()
    mask = np.full((4, 10), 7.0, np.float16)
    fill_mask(mask, 6, visible, positions, window=3)
    # the second child stands in slot 9 at position 7: it sees positions 5, 6 and 7
    assert seen(mask) == [[4, 5, 6], [5, 6, 7], [6, 7, 8], [5, 6, 9]]


def test_a_window_shorter_than_the_step() -> None:
    visible = np.tri(5, dtype=bool)
    mask = np.zeros((5, 7), np.float32)
    fill_mask(mask, 2, visible, np.arange(2, 7), window=2)
    assert seen(mask) == [[1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]


def test_every_row_sees_itself() -> None:
    visible = np.eye(3, dtype=bool)
    mask = np.zeros((3, 9), np.float32)
    fill_mask(mask, 5, visible, np.array([5, 5, 5]), window=1)
    assert seen(mask) == [[5], [6], [7]]


def test_a_window_without_positions_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="needs positions"):
        fill_mask(np.zeros((1, 2), np.float32), 1, np.ones((1, 1), bool), window=2)
