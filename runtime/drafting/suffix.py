"""Drafts copied from what followed the same words before, in prompt and output.

The longest context that occurred before speaks first; the next shorter one adds what it knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from lade_edge.runtime.drafting.sources import CONTEXT, ProposalClass, Rows

ORDERS = (CONTEXT, 6, 4, 3, 2, 1)  # context lengths that are indexed, longest first
_MAX_RANK = 3  # different continuations tried per context
_MAX_LEVELS = 2  # contexts that may speak: the longest match and one shorter
# before anything was seen: by context length, by rank, by how the context continued so far
_BY_ORDER = dict(zip(ORDERS, (0.92, 0.85, 0.70, 0.63, 0.45, 0.28), strict=True))
_BY_RANK = (1.0, 0.4, 0.2)
_BY_HISTORY = {"once": 1.0, "always": 1.05, "mixed": 0.5}
_SHORTER = 0.25
_RANKS = range(_MAX_RANK)
_PER_LEVEL = len(_BY_HISTORY) * _MAX_RANK


class SuffixSource:
    """An index from contexts of several lengths to the tokens that followed.

    Costs one dictionary entry per token and context length; looks up in constant time.
    """

    __slots__ = ("_index", "_lookups", "classes")

    def __init__(self) -> None:
        self._index: tuple[tuple[int, dict[tuple[int, ...], dict[int, int]]], ...] = ()
        self.classes = [
            ProposalClass(
                source="suffix",
                label=f"{'longest' if level == 0 else 'shorter'} match {order}, {history}, {rank}",
                prior=min(
                    0.97,
                    _BY_ORDER[order] * _BY_RANK[rank] * history_factor * (_SHORTER if level else 1),
                ),
            )
            for order in ORDERS
            for level in range(_MAX_LEVELS)
            for history, history_factor in _BY_HISTORY.items()
            for rank in range(_MAX_RANK)
        ]
        self.reset(())

    def reset(self, prompt: Sequence[int]) -> None:
        """Forget everything but the prompt."""
        self._index = tuple((order, {}) for order in ORDERS)
        bases = [number * _MAX_LEVELS * _PER_LEVEL for number in range(len(ORDERS))]
        self._lookups = tuple(
            (order, base, index)
            for (order, index), base in zip(reversed(self._index), reversed(bases), strict=True)
        )
        self.learn(prompt, len(prompt))

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """Index what each of the last ``num_new`` tokens followed."""
        for end in range(len(ids) - num_new, len(ids)):
            token = ids[end]
            for order, index in self._index:
                if end < order:
                    continue
                context = tuple(ids[end - order : end])
                followers = index.get(context)
                if followers is None:
                    index[context] = {token: 1}
                else:
                    # taken out and put back: dictionaries keep the latest at the end
                    followers[token] = followers.pop(token, 0) + 1

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        """Continuations of the longest context that occurred, latest first, then of a shorter one."""
        longest = shorter = None
        longest_base = shorter_base = 0
        length = len(context)
        # shortest first: where a context never occurred, no longer one did
        for order, base, index in self._lookups:
            if order > length:
                break
            followers = index.get(context[-order:])
            if followers is None:
                break
            shorter, shorter_base = longest, longest_base
            longest, longest_base = followers, base
        if longest is None:
            return []
        found = self._latest(longest, longest_base)
        if shorter is not None:
            seen = [token for token, _ in found]
            more = self._latest(shorter, shorter_base + _PER_LEVEL)
            found += [guess for guess in more if guess[0] not in seen]
        return found

    @staticmethod
    def _latest(followers: dict[int, int], kind: int) -> list[tuple[int, int]]:
        if len(followers) == 1:
            ((token, count),) = followers.items()
            return [(token, kind + _MAX_RANK if count > 1 else kind)]
        kind += 2 * _MAX_RANK
        return [
            (token, kind + rank) for token, rank in zip(reversed(followers), _RANKS, strict=False)
        ]

    def observe(self, rows: Rows) -> None:
        """Only emitted text counts here."""
