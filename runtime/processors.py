"""Rules over the scores of the next token that go by the tokens before it.

Each keeps its own count of the text, prompt and output, and is told every token once, in order. What
a row's scores become is therefore a function of the row and of the path that leads to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Float32Array
    from lade_edge.runtime.config import GenerationConfig


class Processor(Protocol):
    """Changes a row of scores by what came before it."""

    def apply(self, scores: Float32Array) -> None:
        """Change the scores of the next token.

        Args:
            scores: ``(V,)`` float32, changed in place; ``-inf`` bans a token.
        """

    def learn(self, token: int) -> None:
        """Take in the token that was chosen, whether it had been drafted or not."""


class LogitBias:
    """Adds a number to the scores of some tokens; ``-inf`` bans them.

    Args:
        bias: What to add, by token id.

    Source: OpenAI's ``logit_bias``; transformers' SequenceBiasLogitsProcessor for single tokens.
    """

    __slots__ = ("_ids", "_values")

    def __init__(self, bias: Mapping[int, float]) -> None:
        self._ids = np.array([*bias], dtype=np.int64)
        self._values = np.array([*bias.values()], dtype=np.float32)

    def apply(self, scores: Float32Array) -> None:
        """Add the bias."""
        scores[self._ids] += self._values

    def learn(self, token: int) -> None:
        """Nothing to learn."""


class RepetitionPenalty:
    """Divides positive scores of tokens seen in prompt or output, multiplies negative ones.

    However often a token was seen, the penalty is applied once.

    Args:
        penalty: Above 1 makes repetition rarer, below 1 likelier.
        prompt: Token ids of the prompt.
        vocab_size: Width of a row.

    Source: CTRL, arXiv 1909.05858, section 4.1; transformers' RepetitionPenaltyLogitsProcessor.
    """

    __slots__ = ("_penalty", "_seen")

    def __init__(self, penalty: float, prompt: Sequence[int], vocab_size: int) -> None:
        self._penalty = penalty
        self._seen = np.zeros(vocab_size, dtype=np.bool_)
        self._seen[list(prompt)] = True

    def apply(self, scores: Float32Array) -> None:
        """Penalise every token seen so far."""
        ids = np.flatnonzero(self._seen)
        found = scores[ids]
        scores[ids] = np.where(found < 0, found * self._penalty, found / self._penalty)

    def learn(self, token: int) -> None:
        """Remember the token."""
        self._seen[token] = True


class CountPenalties:
    """Takes something off the scores of tokens in the output, once and for each time they came.

    Args:
        presence: Taken off once from a token that came at all.
        frequency: Taken off for each time it came.
        vocab_size: Width of a row.

    Source: OpenAI's ``presence_penalty`` and ``frequency_penalty``, which don't count the prompt.
    """

    __slots__ = ("_counts", "_frequency", "_presence")

    def __init__(self, presence: float, frequency: float, vocab_size: int) -> None:
        self._presence = presence
        self._frequency = frequency
        self._counts = np.zeros(vocab_size, dtype=np.float32)

    def apply(self, scores: Float32Array) -> None:
        """Penalise every token of the output so far."""
        ids = np.flatnonzero(self._counts)
        scores[ids] -= self._presence + self._frequency * self._counts[ids]

    def learn(self, token: int) -> None:
        """Count the token."""
        self._counts[token] += 1


class NoRepeatNgram:
    """Bans tokens that would complete an n-gram which prompt and output already have.

    Args:
        size: Tokens of such an n-gram; 1 bans every token seen.
        prompt: Token ids of the prompt.

    Source: transformers' NoRepeatNGramLogitsProcessor.
    """

    __slots__ = ("_followers", "_recent", "_size")

    def __init__(self, size: int, prompt: Iterable[int]) -> None:
        self._size = size
        self._recent: tuple[int, ...] = ()  # the last size-1 tokens, fewer at the start
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for token in prompt:
            self.learn(token)

    def apply(self, scores: Float32Array) -> None:
        """Ban what followed the last tokens before."""
        if banned := self._followers.get(self._recent):
            scores[list(banned)] = -np.inf

    def learn(self, token: int) -> None:
        """Remember the n-gram that ends with the token."""
        if len(self._recent) == self._size - 1:
            self._followers.setdefault(self._recent, set()).add(token)
        self._recent = (*self._recent, token)[max(len(self._recent) + 2 - self._size, 0) :]


class MinNewTokens:
    """Bans end tokens until the output has so many tokens.

    Args:
        count: Tokens before the first that may end the output.
        end_tokens: Tokens that end it.

    Source: transformers' MinNewTokensLengthLogitsProcessor.
    """

    __slots__ = ("_end_ids", "_left")

    def __init__(self, count: int, end_tokens: Iterable[int]) -> None:
        self._left = count
        self._end_ids = np.array(sorted(end_tokens), dtype=np.int64)

    def apply(self, scores: Float32Array) -> None:
        """Ban the end tokens while tokens are missing."""
        if self._left > 0:
            scores[self._end_ids] = -np.inf

    def learn(self, token: int) -> None:
        """Count one token."""
        self._left -= 1


def processors_for(
    settings: GenerationConfig,
    prompt: Sequence[int],
    *,
    vocab_size: int,
    end_tokens: frozenset[int],
) -> tuple[Processor, ...]:
    """The processors a request asks for, in the order in which they are applied.

    That order is transformers': logit bias, repetition penalty, presence and frequency penalties,
    no-repeat n-grams, minimum length.

    Args:
        settings: The request.
        prompt: Its token ids.
        vocab_size: Width of a row.
        end_tokens: Tokens that end this output.
    """
    found: list[Processor] = []
    if settings.logit_bias:
        found.append(LogitBias(settings.logit_bias))
    if settings.repetition_penalty != 1:
        found.append(RepetitionPenalty(settings.repetition_penalty, prompt, vocab_size))
    if settings.presence_penalty or settings.frequency_penalty:
        found.append(
            CountPenalties(settings.presence_penalty, settings.frequency_penalty, vocab_size)
        )
    if settings.no_repeat_ngram_size:
        found.append(NoRepeatNgram(settings.no_repeat_ngram_size, prompt))
    known = {token for token in end_tokens if 0 <= token < vocab_size}
    if settings.min_new_tokens and known:
        found.append(MinNewTokens(settings.min_new_tokens, known))
    return tuple(found)
