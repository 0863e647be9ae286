"""Drafts recycled from the model's own runners-up: what it said when it last saw these tokens.

Every row a step computes is kept, those of rejected drafts too, under its last one to three tokens.

Source: Token Recycling (Luo et al., 2024), with longer contexts and the model's probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lade_edge.runtime.sources import ProposalClass, Row

ORDERS = (3, 2, 1)
_MAX_RANK = 4
_SHARES = (0.02, 0.05, 0.12, 0.3, 0.6, 0.9, 1.1)  # upper ends of the share classes
_MIDDLE = (0.01, 0.035, 0.08, 0.2, 0.4, 0.6, 0.8)
_BY_ORDER = {3: 0.95, 2: 0.9, 1: 0.75}
_LEAST_SHARE = 0.01
_MAX_ENTRIES = 65_536


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

    def observe(self, rows: Sequence[Row]) -> None:
        """Keep each row under its last tokens, in place of what stood there."""
        for context, tokens, shares in rows:
            entry = []
            for rank, share in enumerate(shares):
                if share < _LEAST_SHARE:
                    break
                kind = 0
                while share >= _SHARES[kind]:
                    kind += 1
                entry.append((tokens[rank], min(rank, _MAX_RANK - 1) * len(_SHARES) + kind))
            for order, table in zip(ORDERS, self._tables, strict=True):
                key = context[-order:]
                table.pop(key, None)  # the latest stands last, the stalest goes first
                table[key] = entry
                if len(table) > _MAX_ENTRIES:
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
        base = 0
        for order, table in zip(ORDERS, self._tables, strict=True):
            entry = table.get(context[-order:])
            if entry is not None:
                return [(token, base + kind) for token, kind in entry]
            base += _MAX_RANK * len(_SHARES)
        return []
