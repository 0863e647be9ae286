"""The Jacobi window: guesses for positions ahead, refined by one row per step.

Row ``l``, column ``c`` stands for the position ``l + c`` after the root. The token at (0, 0) is
always the root itself. What the window holds never changes what is generated, only how fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from lade_edge.runtime.config import Shape


class JacobiWindow:
    """N-1 rows of W guessed tokens.

    Attributes:
        rows: N-1 lists of W token ids, oldest row first; row 0 starts with the root.

    Args:
        shape: Draft shape with at least one window column.
        seed: Seed of the start filling and of every later draw.
        eos: End tokens; left alone, they would flood the window.

    Source: arXiv 2402.02057, section 3.1.
    """

    __slots__ = ("_eos", "_generator", "_seed", "_shape", "rows")

    def __init__(self, shape: Shape, *, seed: int, eos: frozenset[int]) -> None:
        self._seed = seed
        self._eos = eos
        self._generator = np.random.default_rng(seed)
        self._shape = shape
        self.rows: list[list[int]] = [[0] * shape.window for _ in range(shape.ngram - 1)]

    def reset(self, prompt: Sequence[int]) -> None:
        """Fill every guess with a seeded draw from the prompt, so that the first step can verify.

        Args:
            prompt: At least one token id.
        """
        self._generator = np.random.default_rng(self._seed)
        size = (self._shape.ngram - 1, self._shape.window)
        drawn = self._generator.integers(len(prompt), size=size).tolist()
        self.rows = [[prompt[index] for index in row] for row in drawn]

    def place_root(self, token: int) -> None:
        """Put the last emitted token at (0, 0)."""
        self.rows[0][0] = token

    def collect(self, newest: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """The n-gram of every column.

        Args:
            newest: W token ids, the model's choice after each token of the last row.

        Returns:
            W pairs of a key token and the N-1 tokens after it, column by column.
        """
        columns = zip(*self.rows, newest, strict=True)
        return [(column[0], column[1:]) for column in columns]

    def shift(self, newest: Sequence[int], ids: Sequence[int]) -> None:
        """Drop the oldest row, append the newest, and move on by one position.

        `place_root` must follow: the column of the old root now holds a guess at its place.

        Args:
            newest: W token ids, as for `collect`.
            ids: Tokens that replacements for end tokens are drawn from.
        """
        row = [
            ids[int(self._generator.integers(len(ids)))] if token in self._eos else token
            for token in newest
        ]
        self.rows = [*self.rows[1:], row]
