"""What to guess next: one draft tree per step, and what each step teaches.

The decode loop knows nothing about where drafts come from. A source of drafts offers what
`DraftSource` names; the Jacobi window, which also needs slots of its own, feeds the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from lade_edge.runtime.pool import NgramPool
from lade_edge.runtime.tree import DraftTree
from lade_edge.runtime.window import JacobiWindow

if TYPE_CHECKING:
    from lade_edge.runtime.config import Shape


class DraftSource(Protocol):
    """Something that guesses from history. It may be wrong at will: guesses only cost slots."""

    def reset(self, prompt: Sequence[int]) -> None:
        """Start a request with its prompt."""

    def propose(self, tree: DraftTree) -> None:
        """Add nodes to the tree, best first."""

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """Take in that the last ``num_new`` of all ``ids`` were emitted."""


class Drafter:
    """Grows the draft tree of each step and keeps its sources up to date.

    Args:
        shape: Draft shape; one with neither window nor guesses gives plain decoding.
        seed: Seed of the window's draws.
        eos: End tokens, kept out of the window.
        stop_tokens: Tokens that end this output, so that nothing is drafted after them.
    """

    __slots__ = ("_max_nodes", "_pool", "_sources", "_tree", "_window")

    def __init__(
        self, shape: Shape, *, seed: int, eos: frozenset[int], stop_tokens: frozenset[int]
    ) -> None:
        self._max_nodes = (shape.ngram - 1) * shape.guesses
        self._tree = DraftTree(stop_tokens=stop_tokens)
        self._window = JacobiWindow(shape, seed=seed, eos=eos) if shape.window else None
        self._pool = NgramPool(shape)
        self._sources: tuple[DraftSource, ...] = (self._pool,) if shape.guesses else ()

    @property
    def window_rows(self) -> list[list[int]] | None:
        """N-1 rows of W token ids, None without a window."""
        return None if self._window is None else self._window.rows

    def start(self, ids: Sequence[int]) -> None:
        """Begin a request.

        Args:
            ids: The prompt and the first emitted token.
        """
        for source in self._sources:
            source.reset(ids[:-1])
            source.learn(ids, 1)
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
        for source in self._sources:
            source.propose(self._tree)
        self._tree.arrange()
        return self._tree

    def learn(self, ids: Sequence[int], num_new: int, newest: Sequence[int]) -> None:
        """Take in one step.

        Args:
            ids: Prompt and output so far.
            num_new: How many of them this step emitted.
            newest: W token ids, the model's choices after the last window row.
        """
        if self._window is not None:
            self._pool.insert_all(self._window.collect(newest), "window")
            self._window.shift(newest, ids)
            self._window.place_root(ids[-1])
        for source in self._sources:
            source.learn(ids, num_new)
