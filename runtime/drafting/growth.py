"""Best-first growth of a draft tree: always the likeliest next node, for as long as it can pay.

Nodes come in order of falling path probability, so every prefix of them is a tree, and the cost
model only has to say how long a prefix to feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from lade_edge.runtime.drafting.sources import CONTEXT

if TYPE_CHECKING:
    from lade_edge.runtime.drafting.estimates import Estimates
    from lade_edge.runtime.drafting.sources import DraftSource
    from lade_edge.runtime.drafting.step_cost import StepCost


_Entry = tuple[float, int, int, int]  # minus path chance, parent, token, class


class Grown(NamedTuple):
    """A tree in order of growth; index 0 is the root, its own parent.

    Attributes:
        tokens: Token of each node.
        parents: Parent of each node.
        chances: Path probability of each node.
        kinds: The surest class that proposed each node; of the root, nothing.
        contexts: Last tokens up to and including each node.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    kinds: list[int]
    contexts: list[tuple[int, ...]]


class Grower:
    """Grows trees from sources.

    Args:
        sources: Sources with the number of their first class among all.
        estimates: Chances of all classes.
        stop_tokens: Tokens never drafted: nothing follows them.
        chain_only: Grow one chain, the likeliest child of each node.
    """

    __slots__ = ("_chain_only", "_estimates", "_sources", "_stop_tokens")

    def __init__(
        self,
        sources: Sequence[tuple[DraftSource, int]],
        estimates: Estimates,
        *,
        stop_tokens: frozenset[int],
        chain_only: bool = False,
    ) -> None:
        self._sources = tuple(sources)
        self._estimates = estimates
        self._stop_tokens = stop_tokens
        self._chain_only = chain_only

    def grow(self, context: tuple[int, ...], max_depth: int, cost: StepCost) -> Grown:
        """Grow a tree below the last token of a context.

        Args:
            context: The last `CONTEXT` tokens of the text.
            max_depth: Drafts in a row that could still be emitted with a token after them.
            cost: Says when a node can't pay any more.
        """
        tree = Grown([context[-1]], [0], [1.0], [-1], [context])
        depths = [0]
        heap: list[_Entry] = []
        least_chances, floor = cost.least_chances, cost.floor
        count, widest = 1, len(least_chances) - 1
        if max_depth > 0 and widest > 1:
            self._expand(context, 0, 1.0, heap, floor)
        while heap:
            negative, parent, token, kind = heappop(heap)
            if -negative <= least_chances[count]:
                break
            depth = depths[parent] + 1
            depths.append(depth)
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.chances.append(-negative)
            tree.kinds.append(kind)
            context = (*tree.contexts[parent][1 - CONTEXT :], token)
            tree.contexts.append(context)
            if depth < max_depth and count + 1 < widest:
                self._expand(context, count, -negative, heap, floor)
            count += 1
        return tree

    def proposals(self, context: tuple[int, ...]) -> dict[int, list[int]]:
        """All classes that propose each token after a context."""
        found: dict[int, list[int]] = {}
        for source, first in self._sources:
            for token, kind in source.propose(context):
                found.setdefault(token, []).append(first + kind)
        return found

    def _expand(
        self,
        context: tuple[int, ...],
        node: int,
        path_chance: float,
        heap: list[_Entry],
        floor: float,
    ) -> None:
        """Ask every source what follows a node."""
        chances = self._estimates.chances
        best: dict[int, tuple[float, int]] = {}
        needed = floor / path_chance  # what is less likely can never pay
        for source, first in self._sources:
            for token, kind in source.propose(context):
                kind += first
                chance = chances[kind]
                if chance > needed:
                    known = best.get(token)
                    if known is None or chance > known[0]:
                        best[token] = chance, kind
        if not best:
            return
        if len(best) > 1:
            if self._chain_only:
                likeliest = max(best, key=best.__getitem__)
                best = {likeliest: best[likeliest]}
            # siblings exclude each other: together they can't be likelier than their parent
            total = sum([chance for chance, _ in best.values()])
            if total > 1.0:
                path_chance /= total
        stop_tokens = self._stop_tokens
        for token, (chance, kind) in best.items():
            chance *= path_chance
            if chance > floor and token not in stop_tokens:
                heappush(heap, (-chance, node, token, kind))
