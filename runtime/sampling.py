"""Choosing tokens where the largest logit isn't all: rules, filters, and one draw per token.

The draw is the Gumbel-max trick over noise that is a function of seed, position and token alone. A
tree never changes it, so a seed gives the same text in every mode, and the text has the model's own
distribution. One uniform number and a running sum over the vocabulary would do for the distribution,
but its steps shift by the last bits of every logit before them: between step widths some token in a
thousand came out differently (SmolLM2-135M in fp32, temperature 1), here none of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from lade_edge.runtime.filters import filters_for
from lade_edge.runtime.processors import processors_for

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Float32Array, Int64Array
    from lade_edge.runtime.config import GenerationConfig
    from lade_edge.runtime.filters import Filter
    from lade_edge.runtime.processors import Processor

_COLDEST = 1e-30  # scores over a smaller temperature leave float32

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIXES = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT = np.uint64(31)
_DROPPED_BITS = np.uint64(12)  # 52 stay, so that half a step more is still below 1


class Noise:
    """Standard Gumbel numbers, each a function of seed, position and token.

    Seed and position give the start of a SplitMix64 sequence, through Philox; its numbers belong to
    the tokens in order. Any of them can be had without the others.

    Attributes:
        vocab_size: Number of tokens.

    Args:
        seed: 0 to 2^64 - 1.
        vocab_size: Number of tokens.

    Source: Philox: Salmon et al., SC 2011; SplitMix64: Steele, Lea, Flood, OOPSLA 2014.
    """

    __slots__ = ("_bits", "_numbers", "_offsets", "_seed", "_shifted", "vocab_size")

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._seed = seed
        self._offsets = np.arange(1, vocab_size + 1, dtype=np.uint64) * _STEP
        self._bits, self._shifted = np.empty((2, vocab_size), dtype=np.uint64)
        self._numbers = np.empty(vocab_size, dtype=np.float64)

    def at(self, position: int, ids: Int64Array) -> npt.NDArray[np.float64]:
        """The numbers of some tokens at one position.

        Args:
            position: Of the token to be chosen, counted from the start of the prompt.
            ids: ``(n,)`` int64 token ids.

        Returns:
            ``(n,)`` float64; the caller may write to it, and the next call does.
        """
        start = np.random.Philox(key=self._seed, counter=position).random_raw()
        bits, shifted = self._bits[: len(ids)], self._shifted[: len(ids)]
        np.take(self._offsets, ids, out=bits, mode="clip")
        bits += np.uint64(start)
        for shift, factor in _MIXES:
            np.right_shift(bits, shift, out=shifted)
            bits ^= shifted
            bits *= factor
        np.right_shift(bits, _LAST_SHIFT, out=shifted)
        bits ^= shifted
        bits >>= _DROPPED_BITS
        numbers = self._numbers[: len(ids)]
        np.add(bits, 0.5, out=numbers)
        numbers *= 2.0**-52  # uniform between 0 and 1, never either
        for _ in range(2):
            np.log(numbers, out=numbers)
            np.negative(numbers, out=numbers)
        return numbers


class Sampler:
    """Chooses the tokens of one output, one after the other.

    The order is: processors, temperature, filters, draw. Where the processors would ban every token,
    none of them applies.

    Args:
        logits: Gives the ``(V,)`` float32 logits of a row of the last step, by its number.
        processors: Fresh processors that know the prompt.
        filters: What narrows the choice; without effect at temperature 0, since the best token
            passes before any of them could be asked.
        temperature: Divides the scores; 0 takes the best one.
        noise: Noise to draw with.
        position: Position of the first token to choose, the length of the prompt.
    """

    __slots__ = (
        "_all_ids",
        "_filters",
        "_logits",
        "_noise",
        "_position",
        "_processors",
        "_temperature",
    )

    def __init__(
        self,
        logits: Callable[[int], Float32Array],
        *,
        processors: Sequence[Processor],
        filters: Sequence[Filter],
        temperature: float,
        noise: Noise,
        position: int,
    ) -> None:
        self._logits = logits
        self._processors = tuple(processors)
        self._filters = tuple(filters)
        self._temperature = temperature
        self._noise = noise
        self._all_ids = np.arange(noise.vocab_size)
        self._position = position

    def choose(self, row: int) -> int:
        """Choose the next token of the output and learn it.

        Every call continues the text of the calls before: a walk asks along one path, and what it
        chose is emitted to the last token or the output ends. So there is nothing to take back.

        Args:
            row: Row of the last step whose text ends with the token chosen before.

        Returns:
            The token's id.
        """
        scores = self._processed(self._logits(row))
        token = self._draw(scores) if self._temperature else int(scores.argmax())
        for processor in self._processors:
            processor.learn(token)
        self._position += 1
        return token

    def _processed(self, logits: Float32Array) -> Float32Array:
        if not self._processors:
            return logits
        scores = logits.copy()
        for processor in self._processors:
            processor.apply(scores)
        return logits if scores.max() == -np.inf else scores

    def _draw(self, scores: Float32Array) -> int:
        ids = self._all_ids
        if scores.min() == -np.inf:
            ids = np.flatnonzero(scores > -np.inf)
            scores = scores[ids]
        scores = scores - scores.max()
        scores /= max(self._temperature, _COLDEST)
        for keep in self._filters:
            kept = np.flatnonzero(keep(scores))
            ids, scores = ids[kept], scores[kept]
        perturbed = self._noise.at(self._position, ids)
        perturbed += scores
        return int(ids[perturbed.argmax()])


def sampler_for(
    settings: GenerationConfig,
    prompt: Sequence[int],
    logits: Callable[[int], Float32Array],
    *,
    vocab_size: int,
    end_tokens: frozenset[int],
) -> Sampler | None:
    """The sampler of a request; None if it just takes the largest logit, which needs no full row.

    Args:
        settings: The request, with a seed.
        prompt: Its token ids.
        logits: Gives the full logits of a row of the last step, by its number.
        vocab_size: Width of a row.
        end_tokens: Tokens that end this output.
    """
    processors = processors_for(settings, prompt, vocab_size=vocab_size, end_tokens=end_tokens)
    if not settings.temperature and not processors:
        return None
    return Sampler(
        logits,
        processors=processors,
        filters=filters_for(settings),
        temperature=settings.temperature,
        noise=Noise(settings.seed or 0, vocab_size),
        position=len(prompt),
    )
