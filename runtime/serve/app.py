"""The paths of the server, and what guards them."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from lade_edge.runtime.serve.api_error import ApiError
from lade_edge.runtime.serve.metrics import CONTENT_TYPE, Metrics
from lade_edge.runtime.serve.reply import Reply, error_response
from lade_edge.runtime.serve.requests import Limits, parse_chat, parse_completion, parse_json
from lade_edge.runtime.serve.shapes import Shape, TokenTexts

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
    from tokenizers import Tokenizer

    from lade_edge.runtime.serve.requests import Ask
    from lade_edge.runtime.serve.worker import Worker

_BODY_S = 60  # for a client to send its body
_DISCARDED = 8  # times the limit: read and dropped, so that the client gets to read the refusal
_OPEN = "/health"  # the one path without a key
_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What a request has to pass before it is read.

    Attributes:
        api_key: Key that clients must send, None for no key.
        max_body: Bytes of a body at most.
        timeout_s: Time a request has from the queue to the last byte.
    """

    api_key: str | None = None
    max_body: int = 1 << 20
    timeout_s: float = 600


def build_app(
    worker: Worker, tokenizer: Tokenizer, limits: Limits, gate: Gate, metrics: Metrics
) -> ASGIApp:
    """The ASGI application.

    Args:
        worker: Worker of the model; started and closed by the caller.
        tokenizer: The model's tokenizer.
        limits: What a request may ask for.
        gate: What it has to pass.
        metrics: Figures to keep.
    """
    texts = TokenTexts(tokenizer)
    created = int(time.time())
    card = {"id": limits.model_name, "object": "model", "created": created, "owned_by": "lade"}

    async def generate(request: Request, parse: Callable[..., Ask]) -> ASGIApp:
        ask = parse(parse_json(await _body(request, gate.max_body)), limits)
        shape = Shape(ask, limits.model_name, texts)
        return Reply(ask, shape, worker, timeout_s=gate.timeout_s)

    async def chat(request: Request) -> ASGIApp:
        return await generate(request, parse_chat)

    async def completion(request: Request) -> ASGIApp:
        return await generate(request, parse_completion)

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name != limits.model_name:
            raise ApiError(404, f"the model {name!r} is not here", code="model_not_found")
        return _json(card)

    async def health(request: Request) -> Response:
        if worker.is_open:
            return _json({"status": "ok"})
        return _json({"status": "down"}, status=503)

    async def figures(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    metrics.watch(waiting=lambda: worker.num_waiting, running=lambda: worker.num_running)
    app = Starlette(
        routes=[
            _route("/v1/chat/completions", chat, "POST"),
            _route("/v1/completions", completion, "POST"),
            _route("/v1/models", models, "GET"),
            _route("/v1/models/{name:path}", model, "GET"),
            _route("/health", health, "GET"),
            _route("/metrics", figures, "GET"),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _server_error},
    )
    return _counted(_guarded(app, gate.api_key), metrics)


def _route(path: str, answer: Callable[[Request], Awaitable[ASGIApp]], method: str) -> Route:
    async def endpoint(request: Request) -> ASGIApp:
        try:
            return await answer(request)
        except ApiError as error:
            return error_response(error)

    return Route(path, endpoint, methods=[method])


async def _body(request: Request, limit: int) -> bytes:
    too_large = ApiError(413, f"the body is larger than {limit} bytes; send less text")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit * _DISCARDED:
        raise too_large
    parts, size = [], 0
    with anyio.move_on_after(_BODY_S) as clock:
        try:
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    parts.append(part)
                elif size > limit * _DISCARDED:
                    raise too_large
        except ClientDisconnect as error:
            raise ApiError(499, "the client left while it sent the body") from error
    if clock.cancelled_caught:
        raise ApiError(408, f"the body didn't come in {_BODY_S} seconds; send it at once")
    if size > limit:
        raise too_large
    return b"".join(parts)


def _guarded(app: ASGIApp, key: str | None) -> ASGIApp:
    """Lets nobody pass without the key."""
    expected = None if key is None else f"Bearer {key}".encode()

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if expected is not None and scope["type"] == "http" and scope["path"] != _OPEN:
            sent = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(sent, expected):
                error = ApiError(401, "the API key is missing or wrong", code="invalid_api_key")
                await error_response(error)(scope, receive, send)
                return
        await app(scope, receive, send)

    return call


def _counted(app: ASGIApp, metrics: Metrics) -> ASGIApp:
    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        status = 499

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, receive, watched)
        finally:
            path = scope["path"]
            metrics.answered(path if path in _PATHS else "other", status)

    return call


def _json(content: object, *, status: int = 200) -> Response:
    return Response(json.dumps(content), status_code=status, media_type="application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        sentence = f"{request.method} can't be used at {request.url.path}; try another method"
    else:
        sentence = f"there is nothing at {request.url.path}; paths are {', '.join(_PATHS)}"
    response = error_response(ApiError(error.status_code, sentence))
    response.headers.update(error.headers or {})
    return response


async def _server_error(request: Request, error: Exception) -> Response:
    return error_response(ApiError(500, "the server failed on this request; its log says why"))
