"""What a request asks for, and the draft shape that follows from it.

A `Shape` is the paper's (W, N, G). A step feeds at most ``Shape.width`` tokens, which an engine
either accepts or not; that is checked here, before anything runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Literal, get_args

from lade_edge.engines.errors import ConfigError

if TYPE_CHECKING:
    from lade_edge.engines.protocol import EngineSpec

Mode = Literal["auto", "exact", "lookahead", "plain"]
Cost = Literal["measured", "flat"]
FinishReason = Literal["eos", "stop", "length", "context"]

_LARGEST = 1000  # of W, N and G: far beyond what any step can hold
_WHOLE_NUMBERS = (
    "window", "ngram", "guesses", "max_width", "min_width", "max_new_tokens", "min_new_tokens",
    "seed", "top_k", "no_repeat_ngram_size", "logprobs",
)  # fmt: skip
_OPTIONAL = ("window", "ngram", "guesses", "max_width", "seed", "logprobs")
_COUNTS = ("max_new_tokens", "min_new_tokens", "top_k", "no_repeat_ngram_size")
_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-100, 100),
    "frequency_penalty": (-100, 100),
}
_LARGEST_BIAS = 1000
_MOST_LOGPROBS = 8  # what an engine's own table of candidates holds
_SEEDS = 1 << 64
MODES: tuple[Mode, ...] = get_args(Mode)
COSTS: tuple[Cost, ...] = get_args(Cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much to guess per step.

    Attributes:
        window: Columns of the Jacobi window, W; 0 switches the window off.
        ngram: Length of an n-gram, N >= 2; the window has N-1 rows.
        guesses: Most n-grams kept per pool key and tried per step, G; 0 switches drafts off.

    Raises:
        ConfigError: If a number is below its minimum.

    Source: arXiv 2402.02057, sections 3.1 to 3.3.
    """

    window: int
    ngram: int
    guesses: int

    def __post_init__(self) -> None:
        for name, minimum in (("window", 0), ("ngram", 2), ("guesses", 0)):
            value = getattr(self, name)
            if not minimum <= value <= _LARGEST:
                raise ConfigError(f"{name} is {value}; expected {minimum} to {_LARGEST}")

    @property
    def window_slots(self) -> int:
        """Slots the window takes in a step besides the root."""
        return max(0, (self.ngram - 1) * self.window - 1)

    @property
    def width(self) -> int:
        """Most tokens a step feeds: (N-1)(W+G), or 1 + (N-1)G without a window."""
        return 1 + self.window_slots + (self.ngram - 1) * self.guesses

    def fitted(self, max_width: int) -> Shape:
        """The nearest smaller shape whose steps take at most ``max_width`` tokens.

        Guesses and columns shrink evenly before the n-gram length does.
        """
        window, ngram, guesses = self.window, self.ngram, self.guesses
        while Shape(window=window, ngram=ngram, guesses=guesses).width > max_width:
            if guesses > max(1, window):
                guesses -= 1
            elif window > 1:
                window -= 1
            elif ngram > 2:
                ngram -= 1
            elif guesses:
                guesses -= 1
            else:
                window = 0
        return Shape(window=window, ngram=ngram, guesses=guesses)


PLAIN = Shape(window=0, ngram=2, guesses=0)
DEVICE_SHAPES = {
    "cpu": Shape(window=2, ngram=3, guesses=2),
    "cuda": Shape(window=4, ngram=4, guesses=4),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationConfig:
    """Options of one generation; the command line uses the same words.

    Attributes:
        mode: ``"auto"``: drafts from all sources, as many a step as pay on this device;
            ``"exact"``: the same along one chain, bit-identical to plain decoding at the same
            ``min_width``, 2 if none is given;
            ``"lookahead"``: the paper's, with the window, n-gram length and guesses given here;
            ``"plain"``: one token a step. None is ``"lookahead"`` if any of these three is given,
            else ``"auto"``.
        window: Window columns W, None for the device's default.
        ngram: N-gram length N, None for the device's default.
        guesses: Guesses per step G, None for the device's default.
        max_width: Widest step of ``auto`` and ``exact`` in tokens, None for 32.
        min_width: Narrowest step in tokens; shorter ones are padded.
        cost: What a slot costs in ``auto`` and ``exact``: as ``"measured"``, or nothing
            (``"flat"``), which fills every step as far as there are guesses.
        max_new_tokens: Tokens to generate at most; 0 runs nothing.
        min_new_tokens: Tokens to generate before an end token may be chosen; stop texts still end
            the output.
        temperature: Divides the logits before a token is drawn; 0 takes the best one (greedy).
        top_k: Draw among so many best tokens; 0 for all.
        top_p: Draw among the fewest best tokens with this much probability; 1 for all.
        min_p: Draw among tokens at least this many times as probable as the best; 0 for all.
        typical_p: Draw among the tokens of most usual surprise with this much probability; 1 for
            all. Like the three above, it changes nothing at temperature 0.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt and
            output; 1 for none.
        presence_penalty: Taken off the logits of tokens in the output.
        frequency_penalty: Taken off them for each time they came.
        no_repeat_ngram_size: Never repeat so many tokens of prompt and output in a row; 0 for no
            such rule.
        logit_bias: Added to the logits, by token id; ``-inf`` bans a token.
        seed: Seed of every random draw of the request. None is 0, or with a temperature a fresh
            one, which the result tells.
        stop: Texts that end the output; they and what follows are cut off.
        eos_token_ids: End tokens on top of the model's own.
        ignore_eos: Go on after an end token.
        skip_special_tokens: Hide special tokens from the text; ids always hold them.
        logprobs: Tell the log probability of every emitted token under the model's own distribution,
            and those of so many likeliest ones, 0 to 8; None reads none.
        reuse_prefix: Begin with the part of the KV cache that this prompt shares with the last
            request's text, and leave the cache for the next one. It was computed in steps of other
            widths, so logits may differ in the last bits; ``exact`` ignores it and starts afresh.

    Raises:
        ConfigError: If a value can't be used.
    """

    mode: Mode | None = None
    window: int | None = None
    ngram: int | None = None
    guesses: int | None = None
    max_width: int | None = None
    min_width: int = 1
    cost: Cost = "measured"
    max_new_tokens: int = 256
    min_new_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    reuse_prefix: bool = False

    def __post_init__(self) -> None:
        for name in _WHOLE_NUMBERS:
            value = getattr(self, name)
            if type(value) is not int and not (value is None and name in _OPTIONAL):
                raise ConfigError(f"{name} is {value!r}; expected a whole number")
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"mode is {self.mode!r}; expected one of {', '.join(MODES)}")
        if self.cost not in COSTS:
            raise ConfigError(f"cost is {self.cost!r}; expected one of {', '.join(COSTS)}")
        for name, width in (("max_width", self.max_width), ("min_width", self.min_width)):
            if width is not None and width < 1:
                raise ConfigError(f"{name} is {width}; expected 1 or more")
        for name in _COUNTS:
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.logprobs is not None and not 0 <= self.logprobs <= _MOST_LOGPROBS:
            raise ConfigError(f"logprobs is {self.logprobs}; expected 0 to {_MOST_LOGPROBS}")
        if self.min_new_tokens > self.max_new_tokens:
            raise ConfigError(
                f"min_new_tokens is {self.min_new_tokens}, max_new_tokens {self.max_new_tokens}; "
                "expected the smaller one first, lower it or raise the other"
            )
        if self.seed is not None and not 0 <= self.seed < _SEEDS:
            raise ConfigError(f"seed is {self.seed}; expected 0 to {_SEEDS - 1}")
        for name, (low, high) in _RANGES.items():
            object.__setattr__(self, name, _number(name, getattr(self, name), low, high))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        # A bare string would otherwise be taken for a list of one-letter stop texts.
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        if "" in stop:
            raise ConfigError("a stop text is empty; expected at least one character")
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "eos_token_ids", tuple(self.eos_token_ids))
        given = self._given_numbers()
        if given and self.decoding != "lookahead":
            raise ConfigError(
                f"{given[0]} belongs to mode lookahead, the mode is {self.mode}; leave one out"
            )
        self.filled(DEVICE_SHAPES["cpu"])

    @property
    def decoding(self) -> Mode:
        """The mode in force."""
        return self.mode or ("lookahead" if self._given_numbers() else "auto")

    def seeded(self) -> GenerationConfig:
        """The same request with a seed: the given one, else a fresh one if tokens are drawn, or 0."""
        if self.seed is not None:
            return self
        return replace(
            self, seed=int.from_bytes(os.urandom(4), "little") if self.temperature else 0
        )

    def _given_numbers(self) -> list[str]:
        return [n for n in ("window", "ngram", "guesses") if getattr(self, n) is not None]

    def filled(self, default: Shape) -> Shape:
        """The shape asked for, with gaps taken from ``default``."""
        return Shape(
            window=default.window if self.window is None else self.window,
            ngram=default.ngram if self.ngram is None else self.ngram,
            guesses=default.guesses if self.guesses is None else self.guesses,
        )

    def shape(self, spec: EngineSpec) -> Shape:
        """The draft shape on one engine, with its device's defaults filled in.

        Raises:
            ConfigError: If a step of this shape is wider than the engine accepts.
        """
        if self.decoding != "lookahead":
            return PLAIN
        default = DEVICE_SHAPES.get(spec.device, DEVICE_SHAPES["cpu"]).fitted(spec.max_width)
        shape = self.filled(default)
        if shape.width > spec.max_width:
            legal = shape.fitted(spec.max_width)
            raise ConfigError(
                f"window {shape.window}, ngram {shape.ngram}, guesses {shape.guesses} make steps of "
                f"{shape.width} tokens, {spec.name} takes at most {spec.max_width}; try window "
                f"{legal.window}, ngram {legal.ngram}, guesses {legal.guesses}"
            )
        return shape


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(f"{name} is {value!r}; expected a number from {low} to {high}")
    return float(value)


def _bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ConfigError(f"logit_bias is {bias!r}; expected numbers by token id")
    for token in bias:
        if type(token) is not int or token < 0:
            raise ConfigError(f"logit_bias names token {token!r}; expected ids of 0 or more")
    return {
        token: value
        if value == -inf
        else _number(f"logit_bias of token {token}", value, -_LARGEST_BIAS, _LARGEST_BIAS)
        for token, value in bias.items()
    }
