"""Drafts from the Jacobi window, and the question whether its slots pay.

The window costs slots now and gives n-grams that may be right later. What it earns is counted in
tokens per step that no other source had proposed.

Source: arXiv 2402.02057, sections 3.1 and 3.2; docs/drafting.md has the rule for its slots.
"""

from __future__ import annotations

from collections.abc import Sequence

from lade_edge.runtime.config import Shape
from lade_edge.runtime.drafting.sources import ProposalClass, Rows
from lade_edge.runtime.drafting.window import JacobiWindow

_MAX_RANK = 3  # tokens kept and tried after the same beginning
_MAX_ENTRIES = 65_536
_BY_MATCH = (0.12, 0.35, 0.5, 0.6)  # before anything was seen, by tokens of the n-gram matched
_BY_RANK = (1.0, 0.4, 0.2)
_EARNED_AT_FIRST = 0.1  # tokens per step
_MEMORY = 31 / 32
_RANKS = range(_MAX_RANK)


class WindowSource:
    """The window with an index of its n-grams by their beginnings.

    Args:
        shape: Draft shape with a window and N > 2.
        seed: Seed of the window's draws.
        eos: End tokens, kept out of the window.

    Attributes:
        classes: By the length of the n-gram's beginning that matched, and recency.
        num_slots: Slots of a step the window takes.
        earned: Tokens per step it has brought lately while it had its slots.
    """

    __slots__ = ("_index", "_longest", "_window", "classes", "earned", "num_slots")

    def __init__(self, shape: Shape, *, seed: int, eos: frozenset[int]) -> None:
        self._window = JacobiWindow(shape, seed=seed, eos=eos)
        self._index: dict[tuple[int, ...], dict[int, None]] = {}
        self.earned = _EARNED_AT_FIRST
        self.num_slots = shape.window_slots
        self._longest = shape.ngram - 1
        self.classes = [
            ProposalClass(
                source="window",
                label=f"{match} of {shape.ngram} tokens, {rank}",
                prior=_BY_MATCH[min(match, len(_BY_MATCH)) - 1] * _BY_RANK[rank],
            )
            for match in range(1, shape.ngram)
            for rank in range(_MAX_RANK)
        ]

    @property
    def rows(self) -> list[list[int]]:
        """N-1 rows of W token ids, the root first."""
        return self._window.rows

    def reset(self, prompt: Sequence[int]) -> None:
        """Forget every n-gram and fill the window from the prompt."""
        self._index.clear()
        self._window.reset(prompt)
        self.earned = _EARNED_AT_FIRST

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """Put the last emitted token where the window starts."""
        self._window.place_root(ids[-1])

    def observe(self, rows: Rows) -> None:
        """Only the window's own rows count here."""

    def advance(self, newest: Sequence[int], ids: Sequence[int], *, earned: int) -> None:
        """Take in a step that had the window in it; `learn` must follow.

        Args:
            newest: W token ids, the model's choices after the last window row.
            ids: Prompt and output so far.
            earned: Emitted tokens of this step that the window alone had proposed.
        """
        self.earned = _MEMORY * self.earned + (1 - _MEMORY) * earned
        for key, continuation in self._window.collect(newest):
            ngram = (key, *continuation)
            for end in range(1, len(ngram)):
                self._insert(ngram[:end], ngram[end])
        self._window.shift(newest, ids)

    def _insert(self, beginning: tuple[int, ...], token: int) -> None:
        followers = self._index.pop(beginning, {})
        self._index[beginning] = followers  # the latest stands last, the stalest goes first
        followers.pop(token, None)
        followers[token] = None
        if len(followers) > _MAX_RANK:
            del followers[next(iter(followers))]
        if len(self._index) > _MAX_ENTRIES:
            del self._index[next(iter(self._index))]

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        """Continuations of the longest beginning the context ends with, latest first."""
        index = self._index
        if index:
            for match in range(min(self._longest, len(context)), 0, -1):
                followers = index.get(context[-match:])
                if followers is not None:
                    first = (match - 1) * _MAX_RANK
                    return [
                        (token, first + rank)
                        for token, rank in zip(reversed(followers), _RANKS, strict=False)
                    ]
        return []
