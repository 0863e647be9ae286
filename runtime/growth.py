"""Best-first growth of a draft tree: always the likeliest next node, for as long as it can pay.

Nodes come in order of falling path probability, so every prefix of them is a tree, and the cost
model only has to say how long a prefix to feed.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from lade_edge.runtime.sources import CONTEXT

if TYPE_CHECKING:
    from lade_edge.runtime.estimates import Estimates
    from lade_edge.runtime.sources import DraftSource
    from lade_edge.runtime.step_cost import StepCost


_Entry = tuple[float, int, int, tuple[int, ...]]  # minus path chance, parent, token, classes


Candidate = tuple[float, tuple[int, ...]]
"""A proposed token's chance, the best of its proposers' estimates, and their classes, best first."""


class Grown(NamedTuple):
    """A tree in order of growth; index 0 is the root, its own parent.

    Attributes:
        tokens: Token of each node.
        parents: Parent of each node.
        chances: Path probability of each node.
        kinds: Classes that proposed each node, best first.
        contexts: Last tokens up to and including each node.
        candidates: What was proposed after each node.
    """

    tokens: list[int]
    parents: list[int]
    chances: list[float]
    kinds: list[tuple[int, ...]]
    contexts: list[tuple[int, ...]]
    candidates: list[dict[int, Candidate]]


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
        tree = Grown([context[-1]], [0], [1.0], [()], [context], [])
        depths = [0]
        heap: list[_Entry] = []
        self._expand(tree, 0, heap if max_depth > 0 else None, cost.least)
        while heap:
            negative, parent, token, kinds = heappop(heap)
            if -negative <= cost.worth[len(tree.tokens)]:
                break
            node = len(tree.tokens)
            depth = depths[parent] + 1
            depths.append(depth)
            tree.tokens.append(token)
            tree.parents.append(parent)
            tree.chances.append(-negative)
            tree.kinds.append(kinds)
            tree.contexts.append((*tree.contexts[parent][1 - CONTEXT :], token))
            self._expand(tree, node, heap if depth < max_depth else None, cost.least)
        return tree

    def _expand(
        self,
        tree: Grown,
        node: int,
        heap: list[_Entry] | None,
        least: float,
    ) -> None:
        """Ask every source what follows a node; without a heap only to learn from the answer."""
        chances = self._estimates.chances
        found: dict[int, Candidate] = {}
        context = tree.contexts[node]
        for source, first in self._sources:
            for token, kind in source.propose(context):
                number = first + kind
                chance = chances[number]
                known = found.get(token)
                if known is None:
                    found[token] = chance, (number,)
                elif chance > known[0]:
                    found[token] = chance, (number, *known[1])
                else:
                    found[token] = known[0], (*known[1], number)
        tree.candidates.append(found)
        if heap is None or not found:
            return
        # siblings exclude each other: together they can't be likelier than their parent
        scale = tree.chances[node] / max(1.0, sum([chance for chance, _ in found.values()]))
        best = max(found, key=lambda token: found[token][0]) if self._chain_only else None
        for token, (chance, kinds) in found.items():
            path_chance = chance * scale
            if path_chance <= least or token in self._stop_tokens:
                continue
            if best is None or token == best:
                heappush(heap, (-path_chance, node, token, kinds))
