"""Log probabilities of emitted tokens, under the model's own distribution.

That is the distribution before penalties, bias, temperature and filters. It takes full rows of
logits, so it is read only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Float32Array


class TokenLogprob(NamedTuple):
    """What the model thought of an emitted token.

    Attributes:
        token: The emitted token's id.
        logprob: Its natural log probability.
        top: The likeliest tokens with theirs, best first; as many as were asked for.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class LogprobReader:
    """Reads them from the rows of the step that gave the tokens.

    Args:
        logits: Gives the ``(V,)`` float32 logits of a row of the last step, by its number.
        count: Likeliest tokens to tell with each.
    """

    __slots__ = ("_count", "_logits")

    def __init__(self, logits: Callable[[int], Float32Array], count: int) -> None:
        self._logits = logits
        self._count = count

    def read(self, tokens: Sequence[int], path: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """Log probabilities of the tokens one step emitted, before the next step runs.

        Args:
            tokens: The tokens.
            path: Rows after the root's, by which the second and later ones were chosen.
        """
        return tuple(
            self._score(row, token) for token, row in zip(tokens, (0, *path), strict=False)
        )

    def _score(self, row: int, token: int) -> TokenLogprob:
        logits = self._logits(row).astype(np.float64)
        logits -= logits.max()
        total = np.log(np.exp(logits).sum())
        best = np.argpartition(-logits, min(self._count, len(logits) - 1))[: self._count]
        best = best[np.lexsort((best, -logits[best]))]
        top = tuple((int(other), float(logits[other] - total)) for other in best)
        return TokenLogprob(token, float(logits[token] - total), top)
