"""All engines on the same prompts in turn, one at work at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

from peers.process import PeerError
from peers.summary import Run

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids that every engine gets, with the names of prompt and category."""

    id: str
    category: str
    ids: list[int]


class Asked(Protocol):
    """A loaded worker."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Carry out a request or raise PeerError."""

    def processor_s(self) -> float:
        """Processor time so far."""


@dataclass(slots=True)
class Measured:
    """What a measurement gave.

    Attributes:
        runs: Every generation that counts.
        failures: Why a mode ended early, by engine and mode; its runs are left out.
        idle_share: Processor time over time of each engine while another one worked.
    """

    runs: list[Run] = field(default_factory=list)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    idle_share: dict[str, float] = field(default_factory=dict)


def measure(
    workers: Mapping[str, Asked],
    modes: Mapping[str, Sequence[str]],
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    rounds: int,
    tell: Callable[[str], None],
) -> Measured:
    """Run every prompt through every mode of every engine, prompt by prompt.

    Who comes first moves on from prompt to prompt. A first generation of each mode is dropped.

    Args:
        workers: Loaded workers by name.
        modes: Their modes.
        prompts: What to run.
        max_new_tokens: Tokens per prompt at most.
        rounds: How often to run everything.
        tell: Told how far it is.
    """
    found = Measured()
    idle = dict.fromkeys(workers, 0.0)
    waited = dict.fromkeys(workers, 0.0)

    def generate(name: str, mode: str, prompt: Prompt, count: int) -> dict[str, Any] | None:
        others = [other for other in workers if other != name]
        before = [workers[other].processor_s() for other in others]
        began = perf_counter()
        try:
            return workers[name].ask(do="generate", mode=mode, ids=prompt.ids, count=count)
        except PeerError as error:
            found.failures[name, mode] = str(error)
            return None
        finally:
            spent = perf_counter() - began
            for other, earlier in zip(others, before, strict=True):
                idle[other] += max(workers[other].processor_s() - earlier, 0.0)
                waited[other] += spent

    pairs = [(name, mode) for name in workers for mode in modes[name]]
    for name, mode in pairs:
        generate(name, mode, prompts[0], min(_WARM_UP_TOKENS, max_new_tokens))
    idle, waited = dict.fromkeys(workers, 0.0), dict.fromkeys(workers, 0.0)
    for turn in range(rounds * len(prompts)):
        round_number, number = divmod(turn, len(prompts))
        prompt, first = prompts[number], turn % max(len(pairs), 1)
        tell(f"round {round_number + 1} of {rounds}, prompt {number + 1} of {len(prompts)}")
        for name, mode in pairs[first:] + pairs[:first]:
            if (name, mode) in found.failures:
                continue
            answer = generate(name, mode, prompt, max_new_tokens)
            if answer is not None:
                found.runs.append(
                    Run(
                        engine=name,
                        mode=mode,
                        prompt=prompt.id,
                        category=prompt.category,
                        round=round_number,
                        ids=tuple(answer["ids"]),
                        first=answer["first"],
                        seconds=answer["seconds"],
                    )
                )
    found.runs = [run for run in found.runs if (run.engine, run.mode) not in found.failures]
    found.idle_share = {name: idle[name] / waited[name] for name in workers if waited[name]}
    return found
