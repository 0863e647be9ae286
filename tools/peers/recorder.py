"""Times one generation as whoever reads its stream sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from time import perf_counter
from typing import Any


class Recorder:
    """Collects tokens as they arrive, up to and with an end token.

    Args:
        ends: End tokens.
        count: Tokens at most.
    """

    def __init__(self, ends: Collection[int], count: int) -> None:
        self._ends, self._count = frozenset(ends), count
        self._ids: list[int] = []
        self._first = 0
        self._since = self._until = 0.0

    def add(self, tokens: Iterable[int]) -> bool:
        """Take in what arrived together; True when the text is over."""
        now = perf_counter()
        before = len(self._ids)
        for token in tokens:
            if self.over:
                break
            self._ids.append(int(token))
        if not before:
            self._first, self._since = len(self._ids), now
        if len(self._ids) > before:
            self._until = now
        return self.over

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted."""
        ended = bool(self._ids) and self._ids[-1] in self._ends
        return ended or len(self._ids) >= self._count

    def result(self) -> dict[str, Any]:
        """``ids``; how many of them came ``first``, together; ``seconds`` from these to the last."""
        seconds = self._until - self._since
        return {"ids": self._ids, "first": self._first, "seconds": seconds}
