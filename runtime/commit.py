"""The one boundary of a generation: which tokens count, and why it ends.

All modes pass every token through `Committer.commit`, the first one included.
Ids, text, events, cache rows, pool and statistics follow what it keeps and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from lade_edge.runtime.stop import StopMatcher

if TYPE_CHECKING:
    from lade_edge.runtime.config import FinishReason
    from lade_edge.runtime.detokenize import Detokenizer


class Commit(NamedTuple):
    """What was kept of a chunk.

    Attributes:
        tokens: The kept tokens, at least one.
        text: Text released by them.
        finish_reason: Why the output ends here, or None.
    """

    tokens: list[int]
    text: str
    finish_reason: FinishReason | None


class Committer:
    """Cuts chunks of tokens where the output ends.

    Attributes:
        eos: End tokens that end this output; empty if they are ignored.
        text_s: Seconds the last `commit` spent on turning tokens into text.

    Args:
        detokenizer: Fresh, and fed by nobody else.
        prompt_length: Tokens of the prompt.
        max_new_tokens: Tokens to keep at most.
        capacity: Tokens of prompt and output together at most; above ``prompt_length``.
        eos: End tokens.
        stop: Stop texts.
    """

    __slots__ = (
        "_capacity",
        "_detokenizer",
        "_matcher",
        "_max_length",
        "_num_ids",
        "eos",
        "text_s",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        prompt_length: int,
        max_new_tokens: int,
        capacity: int,
        eos: frozenset[int] = frozenset(),
        stop: tuple[str, ...] = (),
    ) -> None:
        self.eos = eos
        self.text_s = 0.0
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(stop)
        self._num_ids = prompt_length
        self._max_length = prompt_length + max_new_tokens
        self._capacity = capacity

    @property
    def remaining(self) -> int:
        """Tokens that may still be kept."""
        return min(self._max_length, self._capacity) - self._num_ids

    def commit(self, chunk: Iterable[int]) -> Commit:
        """Keep tokens up to the first that ends the output.

        Args:
            chunk: At least one token; `remaining` must be at least 1.

        Returns:
            The kept tokens, their text, and the reason if the output ends with them.
        """
        tokens: list[int] = []
        text = ""
        reason: FinishReason | None = None
        self.text_s = 0.0
        for token in chunk:
            tokens.append(token)
            self._num_ids += 1
            if self._matcher.has_stops:
                text += self._decode((token,))
            if reason := self._reason(token):
                break
        if not self._matcher.has_stops:
            text = self._decode(tokens)
        if reason:
            text += self._matcher.push(self._detokenizer.flush()) + self._matcher.flush()
            if self._matcher.matched:
                reason = "stop"  # the last characters became certain only now
        return Commit(tokens, text, reason)

    def _decode(self, tokens: Sequence[int]) -> str:
        started = perf_counter()
        text = self._matcher.push(self._detokenizer.push(tokens))
        self.text_s += perf_counter() - started
        return text

    def _reason(self, token: int) -> FinishReason | None:
        if token in self.eos:
            return "eos"
        if self._matcher.matched:
            return "stop"
        if self._num_ids == self._max_length:
            return "length"
        if self._num_ids == self._capacity:
            return "context"
        return None
