"""Turns a draft tree and a window into the arrays of one step.

Slot order: the root, the tree as `DraftTree.arrange` numbers it, pads, and the window last: row 0
without the root, then rows 1 to N-2. One rule places and masks every token: it stands ``depth``
after the root and sees its ancestors and itself. Window token (0, c) has parent (0, c-1), token
(l, c) has parent (l-1, c). Pads stand at the root's position and see only themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from lade_edge.engines.protocol import BoolArray, EngineSpec, Int64Array
    from lade_edge.runtime.config import Shape
    from lade_edge.runtime.tree import DraftTree


class StepInput(NamedTuple):
    """Arguments of `Engine.step`; the layout's own buffers, valid until its next step.

    Attributes:
        tokens: ``(T,)`` int64 in slot order.
        positions: ``(T,)`` int64.
        visible: ``(T, T)`` bool; row = query, column = key.
        rows: ``(R,)`` int64: every tree node, then the last window row.
    """

    tokens: Int64Array
    positions: Int64Array
    visible: BoolArray
    rows: Int64Array


def visibility(parents: Sequence[int]) -> BoolArray:
    """Which nodes see which: each its ancestors and itself.

    Args:
        parents: Parent of each node, numbered below it; the root is its own.

    Returns:
        ``(n, n)`` bool, lower triangular; row = query, column = key.

    Source: arXiv 2402.02057, section 3.3, with the figure's cases written as one rule.
    """
    visible = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        visible[node] |= visible[parent]
    return visible


def window_parents(shape: Shape) -> list[int]:
    """Parents of the window's tokens in row-major order, the root first."""
    columns = shape.window
    return [
        max(column - 1, 0) if row == 0 else (row - 1) * columns + column
        for row in range(shape.ngram - 1)
        for column in range(columns)
    ]


class StepLayout:
    """Writes steps into buffers that are allocated once per width.

    The window's part of a mask depends on the width alone and is written with the buffer.

    Args:
        shape: Draft shape.
        spec: The engine's limits.
    """

    __slots__ = (
        "_buffers",
        "_chain",
        "_kept",
        "_last_position",
        "_min_width",
        "_num_results",
        "_offsets",
        "_pads",
        "_reach",
        "_row_has_root",
        "_rows",
        "_slots",
        "_window_mask",
    )

    def __init__(self, shape: Shape, spec: EngineSpec) -> None:
        self._slots = shape.window_slots
        # With N = 2 the last window row is row 0, and its first result is the root's.
        self._row_has_root = shape.ngram == 2 and shape.window > 0
        self._num_results = shape.window - self._row_has_root
        self._window_mask = visibility(window_parents(shape))[1:, 1:]
        rows, columns = np.indices((shape.ngram - 1, shape.window))
        self._offsets: Int64Array = (rows + columns).reshape(-1)[1:].astype(np.int64)
        self._min_width = min(spec.plain_width, spec.max_width)
        self._last_position = spec.max_position - 1
        self._reach = max(shape.window + shape.ngram - 3, 0)
        self._kept: Int64Array = np.zeros(spec.max_width, dtype=np.int64)
        self._rows: dict[tuple[int, int], Int64Array] = {}
        self._chain: BoolArray = np.tri(spec.max_width, dtype=np.bool_)
        self._pads: BoolArray = np.eye(spec.max_width, dtype=np.bool_)
        self._buffers: dict[int, tuple[Int64Array, Int64Array, BoolArray]] = {}

    def arrange(
        self, tree: DraftTree, length: int, window: Sequence[Sequence[int]] | None
    ) -> StepInput:
        """Lay out one step.

        Args:
            tree: Arranged draft tree.
            length: Committed slots, which is the root's position.
            window: N-1 window rows of W token ids; None without a window.

        Returns:
            The step. Its width is that of its tokens, or of a plain step if that is wider.
        """
        num_nodes = len(tree.tokens)
        width = max(num_nodes + self._slots, self._min_width)
        start = width - self._slots
        tokens, positions, visible = self._buffers.get(width) or self._allocate(width)

        tokens[:num_nodes] = tree.tokens
        positions[:num_nodes] = tree.depths
        if num_nodes < start:
            tokens[num_nodes:start] = tree.tokens[0]
            positions[num_nodes:start] = 0
        if window is not None:
            tokens[start:] = [token for row in window for token in row][1:]
            positions[start:] = self._offsets
        positions += length
        if length + self._reach > self._last_position:
            # Only window tokens can stand beyond the model's positions; they decide nothing.
            np.minimum(positions, self._last_position, out=positions)

        if start > 1:
            self._mask_tree(visible[:start, :start], tree)
        rows = self._rows.get((width, num_nodes))
        if rows is None:
            last_row = np.arange(width - self._num_results, width, dtype=np.int64)
            rows = np.concatenate((np.arange(num_nodes, dtype=np.int64), last_row))
            self._rows[width, num_nodes] = rows
        return StepInput(tokens, positions, visible, rows)

    def slots(self, nodes: Sequence[int]) -> Int64Array:
        """Nodes of a tree as the array an engine takes; a view, valid until the next call."""
        count = len(nodes)
        self._kept[:count] = nodes
        return self._kept[:count]

    def newest_row(self, best: list[int], num_nodes: int) -> list[int]:
        """The model's choices after the last window row.

        Args:
            best: R token ids, the argmax of each wanted row of the step.
            num_nodes: Nodes of the step's tree, root included.

        Returns:
            W token ids.
        """
        if self._row_has_root:
            return best[:1] + best[num_nodes:]
        return best[num_nodes:]

    def _mask_tree(self, mask: BoolArray, tree: DraftTree) -> None:
        num_nodes, main = len(tree.tokens), tree.main_length + 1
        mask[:main] = self._chain[:main, : len(mask)]
        for node in range(main, num_nodes):
            mask[node] = mask[tree.parents[node]]
            mask[node, node] = True
        mask[num_nodes:] = self._pads[num_nodes : len(mask), : len(mask)]

    def _allocate(self, width: int) -> tuple[Int64Array, Int64Array, BoolArray]:
        start = width - self._slots
        visible = np.zeros((width, width), dtype=np.bool_)
        visible[start:, start:] = self._window_mask
        visible[:, 0] = True
        tokens, positions = np.zeros((2, width), dtype=np.int64)
        self._buffers[width] = tokens, positions, visible
        return self._buffers[width]
