"""The n-gram pool: what followed a token before.

A key token maps to at most G continuations of N-1 tokens, each with the origin it last came from.
Inserting makes a continuation, and its key, the newest; looking up changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lade_edge.runtime.config import Shape
    from lade_edge.runtime.drafting.tree import DraftTree

MAX_KEYS = 16384


class NgramPool:
    """A bounded map from a token to the n-grams that began with it.

    Args:
        shape: Draft shape; ``ngram - 1`` tokens a continuation, ``guesses`` of them a key.
        max_keys: Keys to hold; beyond that the one least recently inserted goes.

    Source: arXiv 2402.02057, section 3.2.
    """

    __slots__ = ("_entries", "_guesses", "_max_keys", "_ngram")

    def __init__(self, shape: Shape, *, max_keys: int = MAX_KEYS) -> None:
        self._ngram = shape.ngram
        self._guesses = shape.guesses
        self._max_keys = max_keys
        # Dictionaries keep their order of insertion: oldest first, on both levels.
        self._entries: dict[int, dict[tuple[int, ...], str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def reset(self, prompt: Sequence[int]) -> None:
        """Forget everything but the n-grams of the prompt."""
        self._entries.clear()
        self.learn(prompt, len(prompt), origin="prompt")

    def insert(self, key: int, continuation: tuple[int, ...], origin: str) -> None:
        """Make a continuation the newest of its key."""
        if not self._guesses:
            return
        entry = self._entries.pop(key, None)
        if entry is None:
            entry = {}
            if len(self._entries) >= self._max_keys:
                del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
        entry.pop(continuation, None)
        entry[continuation] = origin
        if len(entry) > self._guesses:
            del entry[next(iter(entry))]

    def insert_all(self, ngrams: Iterable[tuple[int, tuple[int, ...]]], origin: str) -> None:
        """Insert pairs of a key and its continuation, in order."""
        for key, continuation in ngrams:
            self.insert(key, continuation, origin)

    def learn(self, ids: Sequence[int], num_new: int, *, origin: str = "output") -> None:
        """Insert every n-gram of ``ids`` that ends in one of its last ``num_new`` tokens."""
        first = max(len(ids) - num_new + 1, self._ngram)
        for end in range(first, len(ids) + 1):
            start = end - self._ngram
            self.insert(ids[start], tuple(ids[start + 1 : end]), origin)

    def lookup(self, key: int) -> list[tuple[int, ...]]:
        """Continuations of a token, newest first."""
        return list(reversed(self._entries.get(key, {})))

    def propose(self, tree: DraftTree) -> None:
        """Add the continuations of the tree's root, newest first."""
        entry = self._entries.get(tree.tokens[0])
        if entry is not None:
            for rank, (continuation, origin) in enumerate(reversed(entry.items()), start=1):
                tree.add_chain(continuation, 1.0 / rank, origin)
