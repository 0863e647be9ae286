"""What a generation hands out: events while it runs, a result when it has ended."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from types import TracebackType

    from lade_edge.runtime.config import FinishReason, Mode, Shape
    from lade_edge.runtime.logprobs import TokenLogprob
    from lade_edge.runtime.statistics import Statistics


class Event(NamedTuple):
    """What one step added.

    Attributes:
        text: New text; may be empty while a character or a possible stop text is incomplete.
        ids: New token ids, at least one.
        logprobs: One for each of the ids if they were asked for, else none.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A finished generation.

    Attributes:
        text: The output; the joined texts of all events.
        prompt_tokens: Tokens of the prompt.
        output_ids: Emitted tokens, an end token included; the joined ids of all events.
        finish_reason: ``"eos"``, ``"stop"``, ``"length"`` or ``"context"``.
        mode: Mode it ran in.
        shape: Draft shape of mode lookahead; that of plain decoding in the others.
        seed: Seed it ran with; the same request with this seed gives the same output.
        stats: Steps, speed and acceptance.
        logprobs: One for each output id if they were asked for, else none.
    """

    text: str
    prompt_tokens: int
    output_ids: tuple[int, ...]
    finish_reason: FinishReason
    mode: Mode
    shape: Shape
    seed: int
    stats: Statistics
    logprobs: tuple[TokenLogprob, ...] = ()


class Stream(Iterator[Event]):
    """Events of a running generation.

    Args:
        events: The running decode loop; returns the finish reason.
        finish: Makes the result from all events and the finish reason.
    """

    __slots__ = ("_events", "_finish", "_result", "_seen", "_superseded")

    def __init__(
        self,
        events: Generator[Event, None, FinishReason],
        finish: Callable[[Sequence[Event], FinishReason], Generation],
    ) -> None:
        self._events = events
        self._finish = finish
        self._seen: list[Event] = []
        self._result: Generation | None = None
        self._superseded = False

    def __next__(self) -> Event:
        if self._superseded:
            raise RuntimeError(
                "this stream was ended by a newer request on the same model, which serves one at a "
                "time; read a stream to its end first, or load the model twice"
            )
        try:
            event = next(self._events)
        except StopIteration as ended:
            if self._result is None and ended.value is not None:
                self._result = self._finish(self._seen, ended.value)
            raise StopIteration from None
        self._seen.append(event)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop here and leave the engine clean. A closed stream yields nothing more."""
        self._events.close()

    def supersede(self) -> None:
        """Stop here for a newer request; whoever goes on reading an unfinished stream is told."""
        self._superseded = self._result is None
        self.close()

    @property
    def result(self) -> Generation:
        """The whole generation; events not yet read are read first.

        Raises:
            RuntimeError: If the stream was closed before its end.
        """
        for _ in self:
            pass
        if self._result is None:
            raise RuntimeError("the stream was closed before its end, so there is no result")
        return self._result
