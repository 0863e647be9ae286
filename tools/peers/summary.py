"""From single generations to speeds, ratios and quality.

A category's speed is all its tokens after each first one over all their time. Rounds give medians,
categories a geometric mean, and two modes are compared within a round and a category.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

NEAR_LOSSLESS = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One generation.

    Attributes:
        engine: Engine and precision.
        mode: Its mode of decoding.
        prompt: Name of the prompt.
        category: Its category.
        round: Number of the round.
        ids: The output, an end token included.
        first: How many of them arrived first, together.
        seconds: From these to the last.
    """

    engine: str
    mode: str
    prompt: str
    category: str
    round: int
    ids: tuple[int, ...]
    first: int
    seconds: float

    @property
    def timed(self) -> int:
        """Tokens that `seconds` were spent on."""
        return len(self.ids) - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """An engine on a text: the loss of each token in nats and the best token at each place."""

    losses: Sequence[float]
    best: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerQuality:
    """Ratio of perplexities to the reference's, and share of places with its best token."""

    perplexity_ratio: float
    top1_agreement: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One mode over another: geometric mean of the ratios of categories, and these."""

    ratio: float
    by_category: dict[str, float]

    @property
    def not_ahead(self) -> dict[str, float]:
        """Categories in which the first isn't faster, slowest first."""
        behind = {name: ratio for name, ratio in self.by_category.items() if ratio <= 1}
        return dict(sorted(behind.items(), key=lambda pair: pair[1]))


Key = tuple[str, str]


class Speeds:
    """Speeds of all modes.

    Args:
        runs: Generations of any number of engines, modes, categories and rounds.

    Attributes:
        modes: Engine and mode of each, in the order of the runs.
        categories: Those in which every mode has tokens to time in every round.
        left_out: The other ones.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        tokens: defaultdict[tuple[Key, str, int], int] = defaultdict(int)
        seconds: defaultdict[tuple[Key, str, int], float] = defaultdict(float)
        self._ids: dict[Key, dict[tuple[str, int], tuple[int, ...]]] = defaultdict(dict)
        names: dict[str, None] = {}
        for run in runs:
            key = (run.engine, run.mode)
            tokens[key, run.category, run.round] += run.timed
            seconds[key, run.category, run.round] += run.seconds
            self._ids[key][run.prompt, run.round] = run.ids
            names[run.category] = None
        self._speed = {place: tokens[place] / seconds[place] for place in tokens if tokens[place]}
        self.modes: list[Key] = list(self._ids)
        self.rounds = sorted({place[2] for place in tokens})
        self.categories = [
            name
            for name in names
            if all((key, name, n) in self._speed for key in self.modes for n in self.rounds)
        ]
        self.left_out = [name for name in names if name not in self.categories]

    def of(self, key: Key, category: str) -> float:
        """Tokens a second in a category."""
        return median(self._speed[key, category, number] for number in self.rounds)

    def mean(self, key: Key) -> float:
        """Geometric mean over categories."""
        return geometric_mean(self.of(key, category) for category in self.categories)

    def compare(self, key: Key, other: Key) -> Comparison:
        """Speed of one mode over that of another."""
        ratios = {
            category: median(
                self._speed[key, category, number] / self._speed[other, category, number]
                for number in self.rounds
            )
            for category in self.categories
        }
        return Comparison(ratio=geometric_mean(ratios.values()), by_category=ratios)

    def same_ids(self, key: Key) -> tuple[int, int] | None:
        """Generations with the ids of the engine's plain mode, and all; None for that mode."""
        plain = self._ids.get((key[0], "plain"))
        if key[1] == "plain" or plain is None:
            return None
        mine = self._ids[key]
        return sum(plain.get(place) == ids for place, ids in mine.items()), len(mine)


def quality(scores: Scores, reference: Scores) -> PeerQuality:
    """How far an engine is from the reference on the same text."""
    more = math.fsum(scores.losses) - math.fsum(reference.losses)
    same = sum(a == b for a, b in zip(scores.best, reference.best, strict=True))
    return PeerQuality(
        perplexity_ratio=math.exp(more / len(reference.losses)),
        top1_agreement=same / len(reference.best),
    )


def fastest(
    speeds: Speeds, qualities: Mapping[str, PeerQuality], engines: Iterable[str]
) -> Key | None:
    """The fastest mode among engines that are near lossless, by geometric mean; None without any."""
    allowed = {
        name
        for name in engines
        if name in qualities and qualities[name].perplexity_ratio <= NEAR_LOSSLESS
    }
    return max((key for key in speeds.modes if key[0] in allowed), key=speeds.mean, default=None)
