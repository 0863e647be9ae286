"""One engine, one worker, one queue: requests run in the order in which they came.

The worker's thread is the only one that touches the model. Whoever asks gets told by a callback and
never makes the engine wait.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING

from lade_edge.engines.errors import CapacityError, ConfigError, LadeError
from lade_edge.runtime.serve.api_error import ApiError

if TYPE_CHECKING:
    from lade_edge.runtime.generation import Event, Generation
    from lade_edge.runtime.model import Model
    from lade_edge.runtime.serve.requests import Ask

    Item = Event | Generation | ApiError

_LONGEST_WAIT_S = 60
_MEMORY = 0.8  # share of what was known of a request's duration in the running mean

_log = logging.getLogger(__name__)


class Job:
    """A request in the queue or running.

    Args:
        ask: The request.
        deliver: Called in the worker's thread with each event if the request streams, and last with
            the result or an error; not at all once cancelled without a reason. Must not block.
    """

    __slots__ = ("_deliver", "ask", "asked_at", "cancelled", "reason")

    def __init__(self, ask: Ask, deliver: Callable[[Item], None]) -> None:
        self.ask = ask
        self.asked_at = monotonic()
        self.cancelled = False
        self.reason: ApiError | None = None
        self._deliver = deliver

    def deliver(self, item: Item) -> None:
        """Tell who asked; what goes wrong there is no trouble of the next request."""
        try:
            self._deliver(item)
        except Exception:
            _log.exception("an answer could not be handed over")
            self.cancelled = True


class Worker:
    """Runs requests one after the other.

    Args:
        model: The model; from `start` to `close` nobody else uses it.
        max_waiting: Requests that may wait besides the running one.
        finished: Told each result and the seconds the request waited.
    """

    def __init__(
        self,
        model: Model,
        *,
        max_waiting: int,
        finished: Callable[[Generation, float], None] = lambda result, waited_s: None,
    ) -> None:
        self._model = model
        self._max_waiting = max_waiting
        self._finished = finished
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closing: ApiError | None = None
        self._mean_s = 1.0
        self._thread = threading.Thread(target=self._work, name="lade-worker", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it takes requests."""
        return self._closing is None and self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """1 while a request runs, else 0."""
        return int(self._running is not None)

    def submit(self, ask: Ask, deliver: Callable[[Item], None]) -> Job:
        """Queue a request.

        Args:
            ask: The request.
            deliver: As of `Job`.

        Raises:
            ApiError: 429 if the queue is full, 503 if the server is going down.
        """
        job = Job(ask, deliver)
        with self._changed:
            if self._closing is not None:
                raise self._closing
            if len(self._waiting) >= self._max_waiting and (self._running or self._waiting):
                wait_s = ceil(self._mean_s * (len(self._waiting) + 1))
                raise ApiError(
                    429,
                    f"{len(self._waiting)} requests wait already, as many as may; try again later",
                    code="queue_full",
                    retry_after_s=max(1, min(wait_s, _LONGEST_WAIT_S)),
                )
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job, reason: ApiError | None = None) -> None:
        """Take a request out of the queue, or end it before its next step; harmless when it is over."""
        with self._changed:
            job.reason = reason
            job.cancelled = True
            if job not in self._waiting:
                return  # the thread tells the reason when it sees it
            self._waiting.remove(job)
        if reason is not None:
            job.deliver(reason)

    def drain(self, reason: ApiError) -> None:
        """Take no more requests; those in the queue and the running one go on."""
        with self._changed:
            self._closing = reason
            self._changed.notify()

    def close(self, reason: ApiError, *, timeout_s: float = 10) -> bool:
        """Take no more requests and end all there are.

        Returns:
            Whether the thread has ended; a step that takes longer than ``timeout_s`` goes on.
        """
        self.drain(reason)
        with self._changed:
            jobs = [*self._waiting, *([self._running] if self._running else [])]
        for job in jobs:
            self.cancel(job, reason)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            started = monotonic()
            try:
                self._run(job, waited_s=started - job.asked_at)
            except ApiError as error:
                job.deliver(error)
            except LadeError as error:
                job.deliver(_as_api_error(error, job.ask))
            except BaseException:  # libraries bring panics that are no Exception
                _log.exception("a request failed")
                job.deliver(ApiError(500, "the server failed on this request; its log says why"))
            self._mean_s = _MEMORY * self._mean_s + (1 - _MEMORY) * (monotonic() - started)

    def _next(self) -> Job | None:
        with self._changed:
            self._running = None
            while not self._waiting:
                if self._closing is not None:
                    return None
                self._changed.wait()
            self._running = self._waiting.popleft()
            return self._running

    def _run(self, job: Job, *, waited_s: float) -> None:
        ask = job.ask
        if job.cancelled:  # between leaving the queue and here
            return
        stream = self._model.stream(
            ask.prompt,
            raw=not ask.chat,
            special_tokens=ask.special_tokens,
            config=ask.config,
        )
        with stream:
            for event in stream:
                if job.cancelled:
                    break
                if ask.stream:
                    job.deliver(event)
            else:
                result = stream.result
                self._finished(result, waited_s)
                job.deliver(result)
                return
        if job.reason is not None:
            raise job.reason


def _as_api_error(error: LadeError, ask: Ask) -> ApiError:
    if not isinstance(error, (CapacityError, ConfigError)):
        return ApiError(500, str(error))
    param = None
    if str(error).startswith("the prompt"):
        param = "messages" if ask.chat else "prompt"
    elif str(error).startswith("logit_bias"):
        param = "logit_bias"
    code = "context_length_exceeded" if isinstance(error, CapacityError) else None
    return ApiError(400, str(error), param=param, code=code)
