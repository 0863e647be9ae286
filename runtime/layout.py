"""Turns a draft tree and a window into the arrays of one step.

Slot order: the root, the tree as `DraftTree.arrange` numbers it, pads, and the window last: row 0
without the root, then rows 1 to N-2. One rule places and masks every token: it stands ``depth``
after the root and sees its ancestors and itself. Window token (0, c) has parent (0, c-1), token
(l, c) has parent (l-1, c). Pads stand at the root's position and see only themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lade_edge.runtime.config import PLAIN, Shape

if TYPE_CHECKING:
    from lade_edge.engines.protocol import BoolArray, EngineSpec, Int64Array
    from lade_edge.runtime.drafting.tree import DraftTree


_MAX_PLANS = 4096


class StepInput(NamedTuple):
    """Arguments of `Engine.step`.

    Attributes:
        tokens: T token ids in slot order.
        positions: Position of each.
        visible: ``(T, T)`` bool, read-only; row = query, column = key.
        rows: ``(R,)`` int64: every tree node, then the last window row.
    """

    tokens: list[int]
    positions: list[int]
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


class _Plan(NamedTuple):
    """What the shapes of tree and window alone decide about a step; none of it is ever written.

    Attributes:
        num_pads: Pads between tree and window.
        offsets: Positions of the T tokens relative to the root.
        visible: ``(T, T)`` bool, read-only.
        rows: ``(R,)`` int64.
    """

    num_pads: int
    offsets: list[int]
    visible: BoolArray
    rows: Int64Array


@lru_cache(maxsize=16)
def _kept_plans(
    shape: Shape, min_width: int, widths: tuple[int, ...] | None
) -> dict[tuple[int, ...], _Plan]:
    """Plans by the parents of the tree; one dictionary for all requests with these settings."""
    return {}


def _plan(parents: tuple[int, ...], num_pads: int, shape: Shape) -> _Plan:
    """Lay out a tree of these parents, pads, and the window of a draft shape."""
    num_nodes, slots = len(parents), shape.window_slots
    start = num_nodes + num_pads
    visible = np.eye(start + slots, dtype=np.bool_)
    visible[:num_nodes, :num_nodes] = visibility(parents)
    visible[start:, start:] = visibility(window_parents(shape))[1:, 1:]
    visible[start:, 0] = True
    visible.flags.writeable = False
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    window = [row + column for row in range(shape.ngram - 1) for column in range(shape.window)]
    offsets = [*depths, *[0] * num_pads, *window[1:]]
    # With N = 2 the last window row is row 0, and its first result is the root's.
    num_results = shape.window - (shape.ngram == 2 and shape.window > 0)
    rows = [*range(num_nodes), *range(start + slots - num_results, start + slots)]
    return _Plan(
        num_pads,
        offsets,
        visible,
        np.array(rows, np.int64),
    )


class StepLayout:
    """Lays out the steps of one request.

    Trees of the same shape come again and again; what follows from the shape is kept, from one
    request to the next too.

    Args:
        shape: Draft shape.
        spec: The engine's limits.
        min_width: Narrowest step to run, in tokens; the engine's own for plain steps if that is
            wider.
        widths: Width at which to run a step of so many tokens, by number of tokens, where a wider
            one is faster.
    """

    __slots__ = (
        "_bare_plans",
        "_last_position",
        "_min_width",
        "_plans",
        "_reach",
        "_shape",
        "_widths",
    )

    def __init__(
        self,
        shape: Shape,
        spec: EngineSpec,
        *,
        min_width: int = 1,
        widths: Sequence[int] | None = None,
    ) -> None:
        self._shape = shape
        self._min_width = min(max(spec.plain_width, min_width), spec.max_width)
        self._widths = widths
        self._last_position = spec.max_position - 1
        self._reach = max(shape.window + shape.ngram - 3, 0)
        kept = None if widths is None else tuple(widths)
        self._plans = _kept_plans(shape, self._min_width, kept)
        self._bare_plans = _kept_plans(PLAIN, self._min_width, kept)

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
        parents = tuple(tree.parents)
        plans = self._bare_plans if window is None else self._plans
        plan = plans.get(parents) or self._find_plan(parents, plans)
        row = tree.tokens
        if plan.num_pads:
            row = row + row[:1] * plan.num_pads
        if window is not None:
            row = row + [token for line in window for token in line][1:]
        reach = self._last_position - length
        offsets = plan.offsets
        if self._reach > reach:
            # Only window tokens can stand beyond the model's positions; they decide nothing.
            offsets = [min(offset, reach) for offset in offsets]
        return StepInput(row, [length + offset for offset in offsets], plan.visible, plan.rows)

    def _find_plan(self, parents: tuple[int, ...], plans: dict[tuple[int, ...], _Plan]) -> _Plan:
        shape = PLAIN if plans is self._bare_plans else self._shape
        needed = len(parents) + shape.window_slots
        width = max(needed, self._min_width)
        if self._widths is not None:
            width = self._widths[width]
        if len(plans) >= _MAX_PLANS:
            plans.clear()
        plan = plans[parents] = _plan(parents, width - needed, shape)
        return plan

    def newest_row(self, best: list[int], num_nodes: int) -> list[int]:
        """The model's choices after the last window row.

        Args:
            best: R token ids, the argmax of each wanted row of the step.
            num_nodes: Nodes of the step's tree, root included.

        Returns:
            W token ids.
        """
        if self._shape.ngram == 2 and self._shape.window:  # row 0 is the last, the root in it
            return best[:1] + best[num_nodes:]
        return best[num_nodes:]
