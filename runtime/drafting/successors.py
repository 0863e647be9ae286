"""Drafts recycled from the model's own runners-up: what it said when it last saw these tokens.

Every row a step computes is kept, those of rejected drafts too, under its last one to three tokens.

Source: Token Recycling (Luo et al., 2024), with longer contexts and the model's probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lade_edge.runtime.drafting.sources import ProposalClass, Rows

ORDERS = (3, 2, 1)
_MAX_RANK = 4
_SHARES = (0.02, 0.05, 0.12, 0.3, 0.6, 0.9, 1.1)  # upper ends of the share classes
_MIDDLE = (0.01, 0.035, 0.08, 0.2, 0.4, 0.6, 0.8)
_BY_ORDER = {3: 0.95, 2: 0.9, 1: 0.75}
_LEAST_SHARE = 0.01
_MAX_ENTRIES = 65_536
_PER_ORDER = _MAX_RANK * len(_SHARES)
_ENDS = np.array(_SHARES)
_FIRST_BY_RANK = np.minimum(np.arange(1024), _MAX_RANK - 1) * len(_SHARES)


class SuccessorSource:
    """A bounded table from the last tokens of a row to the model's best ones after them."""

    __slots__ = ("_tables", "classes")

    def __init__(self) -> None:
        self.classes = [
            ProposalClass(
                source="successors",
                label=f"context {order}, rank {rank}, share below {end:g}",
                prior=_BY_ORDER[order] * middle,
            )
            for order in ORDERS
            for rank in range(_MAX_RANK)
            for end, middle in zip(_SHARES, _MIDDLE, strict=True)
        ]
        self._tables: tuple[dict[tuple[int, ...], list[tuple[int, int]]], ...] = ()
        self.reset(())

    def reset(self, prompt: Sequence[int]) -> None:
        """Forget every row; a prompt has none, its rows skip the LM head."""
        self._tables = tuple({} for _ in ORDERS)

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """Only rows count here."""

    def observe(self, rows: Rows) -> None:
        """Keep each row under its last tokens, in place of what stood there."""
        shares = rows.top_shares
        kinds = _ENDS.searchsorted(shares, side="right")
        kinds += _FIRST_BY_RANK[: shares.shape[1]]
        counts = (shares >= _LEAST_SHARE).sum(axis=1)
        (threes, twos, ones) = self._tables
        for context, tokens, row, count in zip(
            rows.contexts, rows.top_ids.tolist(), kinds.tolist(), counts.tolist(), strict=True
        ):
            entry = list(zip(tokens[:count], row, strict=False))
            tables = ((context[-3:], threes), (context[-2:], twos), (context[-1:], ones))
            for key, table in tables[-len(context) :]:  # fewer where the text has just begun
                table.pop(key, None)  # the latest stands last, the stalest goes first
                table[key] = entry
        for table in self._tables:
            while len(table) > _MAX_ENTRIES:
                del table[next(iter(table))]

    def kept(self) -> dict[int, dict[tuple[int, ...], list[tuple[int, int]]]]:
        """What is known, by context length: pairs of a token and a class for each context."""
        return dict(zip(ORDERS, self._tables, strict=True))

    def restore(self, tables: Mapping[int, dict[tuple[int, ...], list[tuple[int, int]]]]) -> None:
        """Know what another source had kept.

        Raises:
            ValueError: If it isn't of this form.
        """
        kinds = range(_MAX_RANK * len(_SHARES))
        if sorted(tables) != sorted(ORDERS) or not all(
            len(context) == order and all(kind in kinds for _, kind in entry)
            for order, table in tables.items()
            for context, entry in table.items()
        ):
            raise ValueError("not a table of successors")
        self._tables = tuple(dict(list(tables[order].items())[-_MAX_ENTRIES:]) for order in ORDERS)

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        """The row last seen after the longest known end of the context."""
        threes, twos, ones = self._tables
        entry = ones.get(context[-1:])
        if entry is None:
            return []
        longer = twos.get(context[-2:])
        if longer is None:
            base = 2 * _PER_ORDER
        else:
            entry, base = longer, _PER_ORDER
            longest = threes.get(context[-3:])
            if longest is not None:
                return longest
        return [(token, base + kind) for token, kind in entry]
