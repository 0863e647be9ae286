"""What a step of each width costs, and so how likely a draft must be to be worth its slot.

A draft token that is accepted saves one plain step. So a tree of k nodes with path probabilities
p_i is worth ``plain * sum(p_i) - (time(k) - plain)``, and the width with the largest worth is taken;
a plain step is worth nothing, so where no drafts are any good decoding is plain.

Source: docs/drafting.md has the rule; the saving is valued at one plain step throughout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class StepCost:
    """Step times of one engine, and the choices that follow from them.

    Args:
        times: Time of a step of each measured width, in any unit; width 1 or 2 among them.
        max_width: Widest step to consider.
        min_width: Narrowest step to take; a tree of fewer nodes is padded.

    Attributes:
        plain: Time of a plain step: the least over all widths from ``min_width``.
        least_chances: For a tree of k nodes (root included), the least path probability its next node
            needs to pay, given that later nodes are no likelier; above 1 at ``max_width``.
        widths: Width at which to run a step of so many tokens: itself, or a wider one that is
            faster, or ``min_width``.
        floor: The least of ``least_chances``: a node below it never pays.
    """

    def __init__(self, times: Mapping[int, float], *, max_width: int, min_width: int = 1) -> None:
        widths = sorted(times)
        measured = [times[width] for width in widths]
        table: list[float] = np.interp(range(1, max_width + 1), widths, measured).tolist()
        if len(widths) > 1:  # beyond the widest measured step time goes on growing as before it
            slope = (measured[-1] - measured[-2]) / (widths[-1] - widths[-2])
            for width in range(widths[-1] + 1, max_width + 1):
                table[width - 1] = measured[-1] + max(slope, 0.0) * (width - widths[-1])
        self.widths = [0, *range(1, max_width + 1)]
        for width in range(max_width - 1, 0, -1):
            if width < min_width or table[width] < table[width - 1]:
                table[width - 1] = table[width]
                self.widths[width] = self.widths[width + 1]
        self._times = [0.0, *table]
        self.plain = self._times[1]
        self.least_chances = [
            0.0,
            *(self._slope(width) / self.plain for width in range(1, max_width)),
            2.0,
        ]
        self.floor = min(self.least_chances[1:])

    def best_width(self, chances: Sequence[float], *, others: int = 0) -> tuple[int, float]:
        """Number of nodes to feed, root included, and what they gain over a plain step.

        Args:
            chances: Path probabilities of the nodes in order of growth, the root's first.
            others: Slots of the step that are taken by something else.

        Returns:
            The number, and the gain in plain steps, which other slots can make negative; minus
            infinity if they leave no room.
        """
        best, best_width, total = float("-inf"), 1, 0.0
        for width in range(1, min(len(chances), len(self._times) - 1 - others) + 1):
            total += chances[width - 1]
            gain = total - self._times[width + others] / self.plain
            if gain > best:
                best, best_width = gain, width
        return best_width, best

    def least_price(self, others: int) -> float:
        """What so many more slots add to a step at least, in plain steps; infinite without room."""
        pairs = zip(self._times[1:], self._times[1 + others :], strict=False)
        return min((wide - narrow for narrow, wide in pairs), default=float("inf")) / self.plain

    def _slope(self, width: int) -> float:
        """Least cost per node of any widening of a step."""
        last = len(self._times) - 1
        steps = range(1, last - width + 1)
        return min((self._times[width + more] - self._times[width]) / more for more in steps)


def free(max_width: int) -> StepCost:
    """Step times as if width cost nothing: every slot is filled."""
    return StepCost({1: 1.0, max_width: 1.0 + 1e-9}, max_width=max_width)
