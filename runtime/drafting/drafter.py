"""What to guess next: one draft tree per step, and what each step teaches.

The decode loop knows a `Drafter` and nothing about where drafts come from. Two exist: the paper's,
with numbers that are fixed, here; and the one that goes by measured cost, in ``tree_drafter.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from lade_edge.runtime.drafting.pool import NgramPool
from lade_edge.runtime.drafting.tree import DraftTree
from lade_edge.runtime.drafting.window import JacobiWindow

if TYPE_CHECKING:
    from lade_edge.engines.protocol import StepResult
    from lade_edge.runtime.config import Shape


class StepOutcome(NamedTuple):
    """What a step taught.

    Attributes:
        ids: Prompt and output so far.
        num_new: How many of them this step emitted.
        path: Slots of the matched draft nodes whose tokens were emitted.
        result: What the engine gave for the wanted rows; the tree's rows come first.
        newest: W token ids, the model's choices after the last window row.
    """

    ids: Sequence[int]
    num_new: int
    path: Sequence[int]
    result: StepResult
    newest: list[int]


class Drafter(Protocol):
    """Guesses one tree per step. It may be wrong at will: guesses only cost slots."""

    @property
    def window_rows(self) -> list[list[int]] | None:
        """N-1 rows of W token ids that want slots of their own; None without a window."""

    def start(self, ids: Sequence[int]) -> None:
        """Begin a request.

        Args:
            ids: The prompt and the first emitted token.
        """

    def draft(self, root: int, max_depth: int) -> DraftTree:
        """Grow the tree of the next step.

        Args:
            root: The last emitted token.
            max_depth: Drafts in a row that could still be emitted with a token after them.

        Returns:
            An arranged tree, valid until the next call.
        """

    def learn(self, outcome: StepOutcome) -> None:
        """Take in one step."""


class LookaheadDrafter:
    """The paper's drafts: every n-gram the pool has for the last token, as many as fit.

    Args:
        shape: Draft shape; one with neither window nor guesses gives plain decoding.
        seed: Seed of the window's draws.
        eos: End tokens, kept out of the window.
        stop_tokens: Tokens that end this output, so that nothing is drafted after them.
    """

    __slots__ = ("_max_nodes", "_pool", "_tree", "_window")

    def __init__(
        self, shape: Shape, *, seed: int, eos: frozenset[int], stop_tokens: frozenset[int]
    ) -> None:
        self._max_nodes = (shape.ngram - 1) * shape.guesses
        self._tree = DraftTree(stop_tokens=stop_tokens)
        self._window = JacobiWindow(shape, seed=seed, eos=eos) if shape.window else None
        self._pool = NgramPool(shape)

    @property
    def window_rows(self) -> list[list[int]] | None:
        """N-1 rows of W token ids, None without a window."""
        return None if self._window is None else self._window.rows

    def start(self, ids: Sequence[int]) -> None:
        """Begin a request.

        Args:
            ids: The prompt and the first emitted token.
        """
        if self._max_nodes:
            self._pool.reset(ids[:-1])
            self._pool.learn(ids, 1)
        if self._window is not None:
            self._window.reset(ids[:-1])
            self._window.place_root(ids[-1])

    def draft(self, root: int, max_depth: int) -> DraftTree:
        """Grow the tree of the next step.

        Args:
            root: The last emitted token.
            max_depth: Drafts in a row that could still be emitted with a token after them.

        Returns:
            An arranged tree, valid until the next call.
        """
        self._tree.reset(root, max_nodes=self._max_nodes, max_depth=max_depth)
        self._pool.propose(self._tree)
        self._tree.arrange()
        return self._tree

    def learn(self, outcome: StepOutcome) -> None:
        """Take in one step."""
        if self._window is not None:
            self._pool.insert_all(self._window.collect(outcome.newest), "window")
            self._window.shift(outcome.newest, outcome.ids)
            self._window.place_root(outcome.ids[-1])
        self._pool.learn(outcome.ids, outcome.num_new)
