"""What a generation cost and what its drafts were worth.

Steps and speed count what follows the first token, which the prefill gives: S, the compression of
the paper, is tokens after the first per step. Time in which the caller holds an event isn't ours.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lade_edge.runtime.drafting.tree import DraftTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Figures of one generation.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        reused_tokens: Those of them the cache held from the request before.
        tokens: Emitted tokens, the first and an end token included.
        steps: Decode steps after the prefill.
        time_to_first_token_s: From the start of the prefill to the first event.
        prefill_s: Engine time of the prefill.
        engine_s: Time of the decode steps inside the engine library.
        host_s: Time of the decode steps for drafts, masks, bindings, verification and commit.
        text_s: Time of the decode steps for turning tokens into text.
        proposed: Draft tokens fed, by origin.
        accepted: Draft tokens emitted, by origin.
        widths: Steps by their width in tokens.
        plain_step_s: Estimated time of a plain step at the speed the machine had; None if this
            engine's steps were never measured.
    """

    prompt_tokens: int
    reused_tokens: int
    tokens: int
    steps: int
    time_to_first_token_s: float
    prefill_s: float
    engine_s: float
    host_s: float
    text_s: float
    proposed: dict[str, int]
    accepted: dict[str, int]
    widths: dict[int, int]
    plain_step_s: float | None = None

    @property
    def estimated_gain(self) -> float | None:
        """Estimated speed over that of plain decoding; None without steps or their measurement."""
        if self.plain_step_s is None or not self.steps:
            return None
        return self.plain_step_s * self.tokens_per_second

    @property
    def tokens_per_step(self) -> float:
        """Tokens after the first per decode step; 0 without steps."""
        return (self.tokens - 1) / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first per second of decoding; 0 without steps."""
        seconds = self.engine_s + self.host_s + self.text_s
        return (self.tokens - 1) / seconds if self.steps and seconds else 0.0

    @property
    def prefill_tokens_per_second(self) -> float:
        """Prompt tokens that were run per second of prefill."""
        ran = self.prompt_tokens - self.reused_tokens
        return ran / self.prefill_s if self.prefill_s else 0.0

    def as_dict(self) -> dict[str, object]:
        """Every figure, derived ones included, ready for JSON."""
        return asdict(self) | {
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": self.tokens_per_second,
            "estimated_gain": self.estimated_gain,
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
        }


class Meter:
    """Adds up the figures of one generation while it runs.

    Args:
        prompt_tokens: Tokens of the prompt.

    Attributes:
        step_s: Engine time of each step, by width in tokens.
    """

    __slots__ = (
        "_accepted",
        "_engine_s",
        "_first_s",
        "_host_s",
        "_prefill_s",
        "_prompt_tokens",
        "_proposed",
        "_reused",
        "_steps",
        "_text_s",
        "_tokens",
        "step_s",
    )

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._tokens = self._steps = self._reused = 0
        self._first_s = self._prefill_s = self._engine_s = self._host_s = self._text_s = 0.0
        self._proposed: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self.step_s: dict[int, list[float]] = {}

    def prefilled(self, *, reused: int, engine_s: float, total_s: float) -> None:
        """Count the prefill and its token; ``reused`` tokens of the prompt didn't run."""
        self._tokens = 1
        self._reused = reused
        self._prefill_s = engine_s
        self._first_s = total_s

    def overhead(self, seconds: float) -> None:
        """Count host time outside the steps."""
        self._host_s += seconds

    def step(
        self,
        tree: DraftTree,
        path: list[int],
        *,
        tokens: int,
        width: int,
        engine_s: float,
        text_s: float,
        total_s: float,
    ) -> None:
        """Count one decode step.

        Args:
            tree: Its draft tree.
            path: Draft nodes whose tokens were emitted.
            tokens: Emitted tokens.
            width: Tokens fed, pads included.
            engine_s: Time inside the engine library.
            text_s: Time for turning tokens into text.
            total_s: Time of the whole step.
        """
        self._steps += 1
        self._tokens += tokens
        self.step_s.setdefault(width, []).append(engine_s)
        self._engine_s += engine_s
        self._text_s += text_s
        self._host_s += total_s - engine_s - text_s
        for origin in tree.origins[1:]:
            self._proposed[origin] += 1
        for node in path:
            self._accepted[tree.origins[node]] += 1

    @property
    def mean_length(self) -> int:
        """Tokens of prompt and output half way through."""
        return self._prompt_tokens + self._tokens // 2

    def statistics(self, plain_step_s: float | None = None) -> Statistics:
        """The figures so far, with the estimated time of a plain step."""
        return Statistics(
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused,
            tokens=self._tokens,
            steps=self._steps,
            time_to_first_token_s=self._first_s,
            prefill_s=self._prefill_s,
            engine_s=self._engine_s,
            host_s=self._host_s,
            text_s=self._text_s,
            proposed=dict(self._proposed),
            accepted=dict(self._accepted),
            widths={width: len(spent) for width, spent in sorted(self.step_s.items())},
            plain_step_s=plain_step_s,
        )
