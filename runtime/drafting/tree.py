"""The draft tree: every guess of one step, shared prefixes once.

Invariants: node 0 is the root, the last emitted token; a parent's number is below its child's; a
child's score is at most its parent's. After `DraftTree.arrange` a node's number is its slot in
the step, with the main chain in slots 1..d, so that accepting any part of it moves no cache rows.
"""

from __future__ import annotations

from collections.abc import Iterable


class DraftTree:
    """A trie of draft tokens under the last emitted token.

    Attributes:
        tokens: Token of each node.
        parents: Parent of each node; the root is its own.
        depths: Distance from the root, so the position of a node relative to the root.
        scores: Estimated path probability of each node, or any number that ranks alike.
        origins: Who proposed each node first.
        children: For each node, its children by token.
        main_length: Nodes on the main chain, root excluded; set by `arrange`.

    Args:
        stop_tokens: Tokens never drafted: nothing follows them, so their node could win nothing.

    Source: arXiv 2402.02057, section 3.2; prefix sharing as in tree attention (SpecInfer).
    """

    __slots__ = (
        "_max_depth",
        "_max_nodes",
        "_stop_tokens",
        "children",
        "depths",
        "main_length",
        "origins",
        "parents",
        "scores",
        "tokens",
    )

    def __init__(self, *, stop_tokens: frozenset[int] = frozenset()) -> None:
        self._stop_tokens = stop_tokens
        self.reset(0, max_nodes=0, max_depth=0)

    def __len__(self) -> int:
        return len(self.tokens)

    def reset(self, root: int, *, max_nodes: int, max_depth: int) -> None:
        """Start over with nothing but a root.

        Args:
            root: Token of the root.
            max_nodes: Most draft nodes to hold.
            max_depth: Greatest depth of a node; zero or less leaves no room for drafts.
        """
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self.tokens = [root]
        self.parents = [0]
        self.depths = [0]
        self.scores = [1.0]
        self.origins = [""]
        self.children: list[dict[int, int]] = [{}]
        self.main_length = 0

    def add(self, parent: int, token: int, score: float, origin: str) -> int | None:
        """Add one node, or find it and raise its score.

        Args:
            parent: Number of its parent.
            token: Its token.
            score: Its path score; never counts for more than its parent's.
            origin: Name of the proposer.

        Returns:
            The node's number, or None if a limit or a stop token keeps it out.
        """
        score = min(score, self.scores[parent])
        node = self.children[parent].get(token)
        if node is not None:
            self.scores[node] = max(score, self.scores[node])
            return node
        node = len(self.tokens)
        depth = self.depths[parent] + 1
        if node > self._max_nodes or depth > self._max_depth or token in self._stop_tokens:
            return None
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.scores.append(score)
        self.origins.append(origin)
        self.children.append({})
        self.children[parent][token] = node
        return node

    def add_chain(self, tokens: Iterable[int], score: float, origin: str) -> None:
        """Add tokens that follow each other from the root, as far as they get."""
        parent = 0
        for token in tokens:
            node = self.add(parent, token, score, origin)
            if node is None:
                return
            parent = node

    def fill(
        self, tokens: list[int], parents: list[int], scores: list[float], origins: list[str]
    ) -> None:
        """Hold a tree that is known to be one: siblings differ, scores fall, no limit is passed.

        Args:
            tokens: Token of each node, the root's first.
            parents: Parent of each node, numbered below it; the root is its own.
            scores: Path score of each node.
            origins: Name of each node's proposer.
        """
        self.tokens, self.parents, self.scores, self.origins = tokens, parents, scores, origins
        depths = [0]
        children: list[dict[int, int]] = [{}]
        self.depths, self.children = depths, children
        for node in range(1, len(tokens)):
            parent = parents[node]
            depths.append(depths[parent] + 1)
            children.append({})
            children[parent][tokens[node]] = node

    def arrange(self) -> list[int]:
        """Number the nodes by slot: main chain first, then by falling score, parents first.

        Returns:
            The number each slot's node had before.
        """
        main = [0]
        while children := self.children[main[-1]]:
            main.append(max(children.values(), key=self.scores.__getitem__))
        self.main_length = len(main) - 1
        rest = set(range(len(self.tokens))).difference(main)
        # A parent precedes its child in number and doesn't fall below it in score.
        order = main + sorted(rest, key=lambda node: (-self.scores[node], node))
        if order != sorted(order):
            self._renumber(order)
        return order

    def _renumber(self, order: list[int]) -> None:
        slots = [0] * len(order)
        for slot, node in enumerate(order):
            slots[node] = slot
        self.tokens = [self.tokens[node] for node in order]
        self.parents = [slots[self.parents[node]] for node in order]
        self.depths = [self.depths[node] for node in order]
        self.scores = [self.scores[node] for node in order]
        self.origins = [self.origins[node] for node in order]
        self.children = [
            {token: slots[child] for token, child in self.children[node].items()} for node in order
        ]
