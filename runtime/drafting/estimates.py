"""How likely a draft is right: one slowly forgetting count per class of proposal.

A prior counts like a few trials; every further trial of a class makes earlier ones weigh less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PRIOR_WEIGHT = 6.0
_MEMORY = 0.98


class Estimates:
    """Chances per class, learnt while decoding.

    Args:
        priors: Chance of each class before anything was seen, between 0 and 1.
    """

    __slots__ = ("_hits", "_priors", "_trials", "chances")

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = tuple(priors)
        self.reset()

    def reset(self) -> None:
        """Forget everything but the priors."""
        self.chances = list(self._priors)
        self._hits = [_PRIOR_WEIGHT * prior for prior in self._priors]
        self._trials = [_PRIOR_WEIGHT] * len(self._priors)

    def record(self, kinds: Iterable[int], hit: bool) -> None:
        """Count one observed proposal for every class that made it."""
        for kind in kinds:
            hits = self._hits[kind] = _MEMORY * self._hits[kind] + hit
            trials = self._trials[kind] = _MEMORY * self._trials[kind] + 1.0
            self.chances[kind] = hits / trials
