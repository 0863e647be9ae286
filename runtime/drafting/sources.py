"""What a source of drafts is: it guesses the next token of a context and learns from every step.

A source only ever proposes. Which proposals are worth a slot is decided elsewhere, from how often
proposals of the same *class* came true: a class is whatever the source can tell about its guess, for
instance the length of the match behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Float32Array, Int64Array

CONTEXT = 9  # tokens of context a source may look at


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalClass:
    """One kind of guess.

    Attributes:
        source: Name of the source, for statistics.
        label: What sets the guess apart, for people.
        prior: Chance that such a guess is right, before anything was seen.
    """

    source: str
    label: str
    prior: float


class Rows(NamedTuple):
    """What the model said after each context that was fed in one step.

    Attributes:
        contexts: n times the last `CONTEXT` tokens, the fed one last.
        top_ids: ``(n, K)`` int64, the model's best next tokens, best first.
        top_shares: ``(n, K)`` float32, their probabilities among themselves.
    """

    contexts: list[tuple[int, ...]]
    top_ids: Int64Array
    top_shares: Float32Array


class DraftSource(Protocol):
    """Something that guesses from history. It may be wrong at will: guesses only cost slots."""

    @property
    def classes(self) -> Sequence[ProposalClass]:
        """The classes of this source; a proposal names one by its index here."""

    def reset(self, prompt: Sequence[int]) -> None:
        """Start a request with its prompt."""

    def propose(self, context: tuple[int, ...]) -> list[tuple[int, int]]:
        """Guess what follows a context.

        Args:
            context: The last `CONTEXT` tokens (fewer near the start), newest last.

        Returns:
            Pairs of a token and a class, no token twice.
        """

    def learn(self, ids: Sequence[int], num_new: int) -> None:
        """Take in that the last ``num_new`` of all ``ids`` were emitted."""

    def observe(self, rows: Rows) -> None:
        """Take in every row a step computed, those of rejected drafts too."""
