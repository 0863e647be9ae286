"""One request from the queue to the last byte of its answer.

Nothing is sent before the engine's first word, so an error still has a status of its own. A client that
leaves, or takes longer than the time a request has, ends its request; one that reads slowly keeps its
own events waiting and nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from starlette.responses import Response

from lade_edge.runtime.generation import Event
from lade_edge.runtime.serve.api_error import ApiError
from lade_edge.runtime.serve.shapes import END_OF_STREAM

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from lade_edge.runtime.serve.requests import Ask
    from lade_edge.runtime.serve.shapes import Shape
    from lade_edge.runtime.serve.worker import Item, Worker

_LAST_WORD_S = 2.0
_MORE = b""


def error_response(error: ApiError) -> Response:
    """An error as an HTTP response."""
    return Response(
        error.body(),
        status_code=error.status,
        headers=error.headers(),
        media_type="application/json",
    )


class Reply:
    """An ASGI application that runs one request.

    Args:
        ask: The request.
        shape: Form of its answer.
        worker: The worker.
        timeout_s: Time from the queue to the last byte.
    """

    def __init__(self, ask: Ask, shape: Shape, worker: Worker, *, timeout_s: float) -> None:
        self._ask = ask
        self._shape = shape
        self._worker = worker
        self._timeout_s = timeout_s
        self._channel: asyncio.Queue[bytes | ApiError | None] = asyncio.Queue()
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Queue the request and send its answer."""
        loop = asyncio.get_running_loop()

        def deliver(item: Item) -> None:  # in the worker's thread
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                for part in self._parts(item):
                    loop.call_soon_threadsafe(self._channel.put_nowait, part)

        try:
            job = self._worker.submit(self._ask, deliver)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await _while_connected(receive, lambda: self._answer(scope, receive, send))
        finally:
            self._worker.cancel(job)

    def _parts(self, item: Item) -> list[bytes | ApiError | None]:
        """An item in bytes; None ends the answer."""
        if isinstance(item, ApiError):
            return [item]
        if isinstance(item, Event):
            return [self._shape.event(item)]
        return [self._shape.end(item) if self._ask.stream else self._shape.whole(item), None]

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        error: ApiError | None = None
        with anyio.move_on_after(self._timeout_s) as time:
            try:
                await self._send_all(send)
            except ApiError as found:
                error = found
        if time.cancelled_caught:
            error = ApiError(
                504,
                f"no whole answer in {self._timeout_s:g} seconds; ask for fewer tokens or try again "
                "later",
                code="timeout",
            )
        if error is not None:
            with anyio.move_on_after(_LAST_WORD_S):
                await self._send_error(error, scope, receive, send)

    async def _send_all(self, send: Send) -> None:
        while True:
            data, behind = await self._next_parts()
            if data:
                await self._begin(send, len(data))
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if isinstance(behind, ApiError):
                raise behind
            if behind is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return

    async def _begin(self, send: Send, size: int) -> None:
        if self._begun:
            return
        self._begun = True
        headers = [(b"cache-control", b"no-cache")]
        if self._ask.stream:
            headers.append((b"content-type", b"text/event-stream"))
        else:
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _next_parts(self) -> tuple[bytes, bytes | ApiError | None]:
        """Everything that has come, in one piece, so that a late reader costs few writes.

        Returns:
            Bytes to send, and what comes behind them: more (no bytes), the end (None), or an error.
        """
        data = b""
        part = await self._channel.get()
        while isinstance(part, bytes):
            data += part
            if self._channel.empty():
                return data, _MORE
            part = self._channel.get_nowait()
        return data, part

    async def _send_error(
        self, error: ApiError, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not self._begun:
            await error_response(error)(scope, receive, send)
            return
        data = b"data: " + error.body() + b"\n\n" + END_OF_STREAM
        await send({"type": "http.response.body", "body": data, "more_body": False})


async def _while_connected(receive: Receive, work: Callable[[], Awaitable[None]]) -> None:
    """Do work until it is done or the client has left."""
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await work()
        group.cancel_scope.cancel()
