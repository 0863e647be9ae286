"""Drafting by measured cost: merged sources, one tree, as wide as it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lade_edge.runtime.drafting.estimates import Estimates
from lade_edge.runtime.drafting.growth import Grower, Grown
from lade_edge.runtime.drafting.sources import CONTEXT, Rows
from lade_edge.runtime.drafting.tree import DraftTree

if TYPE_CHECKING:
    from lade_edge.runtime.drafting.drafter import StepOutcome
    from lade_edge.runtime.drafting.sources import DraftSource
    from lade_edge.runtime.drafting.step_cost import StepCost
    from lade_edge.runtime.drafting.window_source import WindowSource


class TreeDrafter:
    """Grows the tree of each step from all sources and learns what their proposals are worth.

    Args:
        sources: Fresh sources; of several equally sure proposers the first gets the credit.
        cost: Step times of the engine.
        stop_tokens: Tokens that end this output, so that nothing is drafted after them.
        chain_only: Draft one chain, the likeliest child of each node.
        window: One more source, which takes slots of its own in the steps where it earns them.
    """

    __slots__ = (
        "_cost",
        "_estimates",
        "_grower",
        "_grown",
        "_ids",
        "_names",
        "_order",
        "_sources",
        "_tree",
        "_window",
        "_window_fed",
        "_window_kinds",
        "_window_price",
    )

    def __init__(
        self,
        sources: Sequence[DraftSource],
        cost: StepCost,
        *,
        stop_tokens: frozenset[int],
        chain_only: bool = False,
        window: WindowSource | None = None,
    ) -> None:
        if window is not None:
            sources = (*sources, window)
        self._sources = tuple(sources)
        self._window = window
        self._window_fed = False
        self._window_price = 0.0 if window is None else cost.least_price(window.num_slots)
        self._cost = cost
        classes = [kind for source in sources for kind in source.classes]
        counts = [len(source.classes) for source in sources]
        firsts = [sum(counts[:index]) for index in range(len(counts))]
        self._names = [kind.source for kind in classes]
        self._window_kinds = range(firsts[-1] if window is not None else len(classes), len(classes))
        self._estimates = Estimates([kind.prior for kind in classes])
        self._grower = Grower(
            [*zip(sources, firsts, strict=True)],
            self._estimates,
            stop_tokens=stop_tokens,
            chain_only=chain_only,
        )
        self._tree = DraftTree()
        self._grown: Grown | None = None
        self._order: list[int] = []
        self._ids: Sequence[int] = ()

    @property
    def window_rows(self) -> list[list[int]] | None:
        """N-1 rows of W token ids if the step has the window in it."""
        return self._window.rows if self._window is not None and self._window_fed else None

    def start(self, ids: Sequence[int]) -> None:
        """Begin a request.

        Args:
            ids: The prompt and the first emitted token.
        """
        self._estimates.reset()
        self._ids = ids
        for source in self._sources:
            source.reset(ids[:-1])
            source.learn(ids, 1)

    def draft(self, root: int, max_depth: int) -> DraftTree:
        """Grow the tree of the next step.

        Args:
            root: The last emitted token.
            max_depth: Drafts in a row that could still be emitted with a token after them.

        Returns:
            An arranged tree, valid until the next call.
        """
        grown = self._grower.grow(tuple(self._ids[-CONTEXT:]), max_depth, self._cost)
        width, gain = self._cost.best_width(grown.chances)
        window = self._window
        self._window_fed = False
        if window is not None and window.earned > self._window_price:
            beside, rest = self._cost.best_width(grown.chances, others=window.num_slots)
            self._window_fed = rest + window.earned > gain
            if self._window_fed:
                width = beside
        names = self._names
        self._tree.fill(
            grown.tokens[:width],
            grown.parents[:width],
            grown.chances[:width],
            ["", *[names[kind] for kind in grown.kinds[1:width]]],
        )
        self._order = self._tree.arrange()
        self._grown = grown
        return self._tree

    def learn(self, outcome: StepOutcome) -> None:
        """Take in one step."""
        grown = self._grown
        assert grown is not None
        self._ids = outcome.ids
        earned = self._judge(grown, outcome)
        if self._window is not None and self._window_fed:
            self._window.advance(outcome.newest, outcome.ids, earned=earned)
        count = len(self._order)
        shares = outcome.result.top_logits[:count]
        shares = np.exp(shares - shares[:, :1])
        shares /= shares.sum(axis=1, keepdims=True)
        contexts = [grown.contexts[node] for node in self._order]
        rows = Rows(contexts, outcome.result.top_ids[:count], shares)
        for source in self._sources:
            source.observe(rows)
            source.learn(outcome.ids, outcome.num_new)

    def _judge(self, grown: Grown, outcome: StepOutcome) -> int:
        """Compare what is proposed at every node the text passed through with what came.

        Proposals that were never fed teach as well, so that a source which got better is noticed
        even while no step pays.

        Returns:
            Emitted draft tokens that only the window proposed.
        """
        earned = 0
        emitted = outcome.ids[len(outcome.ids) - outcome.num_new :]
        for place, (slot, token) in enumerate(zip((0, *outcome.path), emitted, strict=False)):
            proposals = self._grower.proposals(grown.contexts[self._order[slot]])
            for proposed, kinds in proposals.items():
                self._estimates.record(kinds, proposed == token)
            if self._window_fed and place < len(outcome.path):
                earned += all(kind in self._window_kinds for kind in proposals[token])
        return earned
