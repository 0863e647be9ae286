"""Drafts that outlive a request: texts and runners-up of earlier ones, as sources of their own.

They have classes of their own, so that what is old earns its slots by itself. A request finds what
finished requests left and doesn't see its own text here: that is what the other sources are for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from lade_edge.runtime.drafting.sources import DraftSource, ProposalClass, Rows
from lade_edge.runtime.drafting.successors import SuccessorSource
from lade_edge.runtime.drafting.suffix import SuffixSource

MAX_TOKENS = 65_536  # of all texts kept; the oldest go first
_SURENESS = 0.7  # of a guess from another request, against the same one from this


class DraftHistory:
    """What requests leave to later ones. Fill and read it between requests, use its sources in them.

    Attributes:
        texts: Token ids of finished requests, prompt and output, oldest first.
        successors: Table of the model's runners-up.
    """

    def __init__(self) -> None:
        self.texts: deque[tuple[int, ...]] = deque()
        self.successors = SuccessorSource()
        self._suffixes = SuffixSource()
        self._num_tokens = 0

    def add(self, ids: Sequence[int]) -> None:
        """Keep the text of a finished request; of a very long one its end."""
        text = tuple(ids[-MAX_TOKENS // 2 :])
        self.texts.append(text)
        self._num_tokens += len(text)
        if self._num_tokens <= MAX_TOKENS:
            self._suffixes.learn(text, len(text))
            return
        while self._num_tokens > MAX_TOKENS // 2 and len(self.texts) > 1:
            self._num_tokens -= len(self.texts.popleft())
        self._suffixes.reset(())
        for kept in self.texts:
            self._suffixes.learn(kept, len(kept))

    def fill(self, texts: Iterable[Sequence[int]]) -> None:
        """Keep several texts, oldest first."""
        for text in texts:
            self.add(text)

    def sources(self) -> list[DraftSource]:
        """Sources for one request."""
        return [
            _Kept(self._suffixes, "history", observes=False),
            _Kept(self.successors, "history successors", observes=True),
        ]


class _Kept:
    """A source that a request neither empties nor tells its text.

    Args:
        source: The lasting source.
        name: Its name in statistics.
        observes: Whether rows are kept; else it never changes during a request.
    """

    def __init__(
        self, source: SuffixSource | SuccessorSource, name: str, *, observes: bool
    ) -> None:
        self._source = source
        self._observes = observes
        self.classes = [
            ProposalClass(source=name, label=kind.label, prior=_SURENESS * kind.prior)
            for kind in source.classes
        ]

    def reset(self, prompt: Sequence[int]) -> None:
        """Nothing is forgotten."""

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """A text is added when it is complete."""

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        """Guesses of the lasting source."""
        return self._source.propose(context)

    def observe(self, rows: Rows) -> None:
        """Keep the rows if they are wanted."""
        if self._observes:
            self._source.observe(rows)
