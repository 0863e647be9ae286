"""Runs the application on a socket until it is told to stop, and then stops without tearing."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.serve.api_error import ApiError
from lade_edge.runtime.serve.app import Gate, build_app
from lade_edge.runtime.serve.metrics import Metrics
from lade_edge.runtime.serve.worker import Worker

if TYPE_CHECKING:
    from types import FrameType

    from lade_edge.runtime.model import Model
    from lade_edge.runtime.serve.requests import Limits

_LAST_ANSWERS_S = 3  # beyond the grace, for errors to reach those whose requests were ended


def open_socket(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigError: If the address can't be had.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is no port; expected 0 to 65535")
    if not host or not host.isprintable():
        raise ConfigError(
            f"the host is {host!r}; expected a name or address, 0.0.0.0 for all of them"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, UnicodeError) as error:
        # The library adds the address to what the system says.
        reason = (getattr(error, "strerror", None) or "no such name").split(" (while")[0]
        raise ConfigError(
            f"port {port} of {host} can't be opened ({reason}); choose another with --port and --host"
        ) from error


def serve(
    model: Model,
    listener: socket.socket,
    limits: Limits,
    gate: Gate,
    *,
    max_waiting: int,
    grace_s: float,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Then nothing new is taken; what runs or waits may finish for ``grace_s`` seconds and is ended with
    an error after that.

    Args:
        model: Loaded model; nobody else uses it meanwhile.
        listener: From `open_socket`; closed at the end.
        limits: What a request may ask for.
        gate: What it has to pass.
        max_waiting: Requests that may wait besides the running one.
        grace_s: Seconds that requests get to finish.
        ready: Called once requests are taken.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
    """
    metrics = Metrics()
    worker = Worker(model, max_waiting=max_waiting, finished=metrics.finished)
    config = uvicorn.Config(
        build_app(worker, model.prompts.tokenizer, limits, gate, metrics),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=int(grace_s) + _LAST_ANSWERS_S,
    )
    worker.start()
    previous = None
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal once more when it is done; by default that would be our end.
        previous = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        Server(config, worker, grace_s=grace_s, ready=ready).run(sockets=[listener])
    finally:
        worker.close(_GOING_DOWN)
        listener.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


class Server(uvicorn.Server):
    """A server that ends its worker's requests in time for their clients to be told.

    Args:
        config: Of uvicorn.
        worker: The worker.
        grace_s: Seconds that requests get to finish.
        ready: Called once requests are taken.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        worker: Worker,
        *,
        grace_s: float,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._worker = worker
        self._grace_s = grace_s
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open for requests."""
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish for the time of grace, then end them."""
        self._worker.drain(_GOING_DOWN)
        end = asyncio.get_running_loop().call_later(self._grace_s, self._end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Note the signal; a second one of either kind ends without grace."""
        if self.should_exit:
            self._grace_s = 0
            self._end_requests()
        super().handle_exit(sig, frame)

    def _end_requests(self) -> None:
        self._worker.close(_GOING_DOWN, timeout_s=0)


_GOING_DOWN = ApiError(503, "the server is going down; try again later", retry_after_s=10)
