"""Pearson's test of counts against a distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_NORMAL_QUANTILE = 4.7534  # of 1 - 1e-6


def pooled(observed: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells expecting fewer than 5 are put together.

    Cells without any weight must be empty.
    """
    counts = np.asarray(observed, dtype=np.float64)
    shares = np.asarray(weights, dtype=np.float64)
    assert not counts[shares == 0].any(), "something impossible happened"
    expected = shares / shares.sum() * counts.sum()
    large = expected >= 5
    cells = [*zip(counts[large], expected[large], strict=True)]
    if expected[~large].sum() >= 1:
        cells.append((counts[~large].sum(), expected[~large].sum()))
    statistic = sum((seen - hoped) ** 2 / hoped for seen, hoped in cells)
    return float(statistic), max(len(cells) - 1, 0)


def check_statistic(statistic: float, freedom: int) -> None:
    """Fail where chance alone would do so once in a million times.

    Source: the Wilson-Hilferty approximation of the chi-square quantile.
    """
    spread = 2 / (9 * freedom)
    bound = freedom * (1 - spread + _NORMAL_QUANTILE * spread**0.5) ** 3
    assert statistic < bound, f"chi-square {statistic:.1f}, bound {bound:.1f} ({freedom} degrees)"


def check_law(observed: npt.ArrayLike, weights: npt.ArrayLike) -> None:
    """One set of counts against one distribution, at a false-alarm rate of one in a million."""
    check_statistic(*pooled(observed, weights))
