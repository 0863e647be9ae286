"""What this engine's steps cost on this device, and whether a row depends on its step's width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

_LEAST_STEPS = 3  # of one width in a generation, before its time says anything
_STEPS_FOR_A_WIDTH = 8  # before it says anything about this width alone
_CORRECTION = 0.1
_CAUTION = 5.0  # steps that would say nothing has changed, beside those of a generation
_MOST_CHANGE = 2.0  # of the price of width, by one generation


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProfile:
    """Step times, as they were measured and corrected since.

    Attributes:
        step_ms: Milliseconds the engine library takes for a step by its width in tokens, all rows
            wanted, by committed slots: at one or two lengths, ascending.
        invariant_from: Least width from which the rows of a chain are the same, bit for bit, in
            steps of every measured width; None if there is no such width below the widest.
    """

    step_ms: dict[int, dict[int, float]]
    invariant_from: int | None

    @property
    def widths(self) -> list[int]:
        """The measured widths, ascending."""
        return sorted(next(iter(self.step_ms.values())))

    def at(self, length: int) -> dict[int, float]:
        """Milliseconds of a step by width behind ``length`` committed slots.

        Between the measured lengths and beyond them time grows as it did between them, as
        attention does; below the first it is that of the first.
        """
        near, far = min(self.step_ms), max(self.step_ms)
        first, last = self.step_ms[near], self.step_ms[far]
        share = max(length - near, 0) / (far - near) if far > near else 0.0
        return {
            width: first[width] + share * max(last[width] - first[width], 0.0) for width in first
        }

    def drift(self, seconds: Mapping[int, Sequence[float]], length: int) -> float:
        """How much slower than here measured the machine was in some steps; 1 without any.

        Args:
            seconds: Times of the steps by width.
            length: Committed slots, on average.
        """
        expected = self.at(length)
        known = {width: spent for width, spent in seconds.items() if width in expected and spent}
        total = sum(median(spent) * len(spent) for spent in known.values())
        if not total:  # no steps, or too short for the clock
            return 1.0
        return 1e3 * total / sum(expected[width] * len(spent) for width, spent in known.items())

    def corrected(self, seconds: Mapping[int, Sequence[float]], length: int) -> DeviceProfile:
        """This profile with the steps of a finished generation taken in.

        What a step costs beyond a plain one follows within a few generations, for all widths alike:
        a machine whose memory got slower, or its arithmetic, changes that. How a single width
        departs from the rest follows slowly. A machine that got slower as a whole changes nothing.

        Args:
            seconds: Times of the steps by width.
            length: Committed slots, on average.
        """
        widest = self.widths[-1]
        times = {
            width: 1e3 * median(spent)
            for width, spent in seconds.items()
            if width <= widest and len(spent) >= _LEAST_STEPS and median(spent)
        }
        counts = {width: len(seconds[width]) for width in times}
        price = self._price_of_width(times, counts, length)
        priced = {used: _repriced(by_width, price) for used, by_width in self.step_ms.items()}
        profile = DeviceProfile(step_ms=priced, invariant_from=self.invariant_from)
        expected, drift = profile.at(length), profile.drift(seconds, length)
        factors = {
            width: 1 + _CORRECTION * (ms / (drift * expected[width]) - 1)
            for width, ms in times.items()
            if width in expected and counts[width] >= _STEPS_FOR_A_WIDTH
        }
        if len(factors) < 2:
            return profile
        step_ms = {
            used: {width: ms * factors.get(width, 1.0) for width, ms in by_width.items()}
            for used, by_width in priced.items()
        }
        return DeviceProfile(step_ms=step_ms, invariant_from=self.invariant_from)

    def _price_of_width(
        self, times: Mapping[int, float], counts: Mapping[int, int], length: int
    ) -> float:
        """What a step costs beyond a plain one, in proportion to what it did; 1 if unknown.

        A weighted regression: time over expected time is ``a + d x`` with x the expected share of
        what comes on top of a plain step, so a plain step takes ``a`` times what it did and the rest
        ``a + d`` times.
        """
        if len(times) < 2:
            return 1.0
        expected = self.at(length)
        plain = min(expected.values())
        usual = np.interp([*times], [*expected], [*expected.values()])
        ratios = np.array([*times.values()]) / usual
        shares = 1 - plain / usual
        weights = np.array([counts[width] for width in times])
        mean_share, mean_ratio = (
            np.average(values, weights=weights) for values in (shares, ratios)
        )
        spread = weights @ (shares - mean_share) ** 2
        if not spread:
            return 1.0
        caution = _CAUTION * np.average(shares**2, weights=weights)
        slope = weights @ ((shares - mean_share) * ratios) / (spread + caution)
        plain_ratio = mean_ratio - slope * mean_share
        if plain_ratio <= 0:
            return 1.0
        return float(np.clip(1 + slope / plain_ratio, 1 / _MOST_CHANGE, _MOST_CHANGE))


def _repriced(by_width: dict[int, float], price: float) -> dict[int, float]:
    """Times by width with what comes on top of the least one multiplied."""
    plain = min(by_width.values())
    return {width: plain + price * (ms - plain) for width, ms in by_width.items()}
