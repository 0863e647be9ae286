"""A real server in a thread or a process of its own, over a scripted engine, and a client of it."""

from __future__ import annotations

import argparse
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import uvicorn

from fakes import EOS, OpinionatedEngine, Script, ScriptedEngine, scripted_model
from lade_edge.engines.protocol import BoolArray, Ids, Int64Array, StepResult
from lade_edge.runtime.model import Model
from lade_edge.runtime.serve.api_error import ApiError
from lade_edge.runtime.serve.app import Gate, build_app
from lade_edge.runtime.serve.metrics import Metrics
from lade_edge.runtime.serve.requests import Limits
from lade_edge.runtime.serve.server import Server, open_socket, serve
from lade_edge.runtime.serve.worker import Worker

NAME = "scripted"
CAPACITY = 600


class PacedEngine(OpinionatedEngine):
    """Takes its time for a step, and can be held between steps.

    Attributes:
        step_s: Seconds of a step.
        gate: Steps wait while it is clear.
    """

    def __init__(self, script: Script | None = None, **limits: Any) -> None:
        super().__init__(script, **limits)
        self.step_s = 0.0
        self.gate = threading.Event()
        self.gate.set()

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        assert self.gate.wait(30)
        if self.step_s:
            time.sleep(self.step_s)
        return super().step(tokens, positions, visible, rows)


class Served:
    """A running server.

    Attributes:
        url: Where it is.
        engine: Its engine.
        worker: Its worker.
        client: A client with the server's key, which doesn't try again.
    """

    def __init__(self, model: Model, worker: Worker, port: int, key: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.engine: Any = model.engine
        self.worker = worker
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def post(self, path: str, **options: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.client.api_key}"} | options.pop("headers", {})
        return httpx.post(f"{self.url}{path}", headers=headers, timeout=30, **options)

    def metrics(self) -> dict[str, float]:
        headers = {"authorization": f"Bearer {self.client.api_key}"}
        lines = httpx.get(f"{self.url}/metrics", headers=headers).text.splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def until_idle(self) -> None:
        wait_for(lambda: not self.worker.num_running and not self.worker.num_waiting)


def wait_for(condition: Any, *, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def paced_model(**limits: Any) -> Model:
    script = Script(rare=(EOS,), surprise=9, salt=218)  # answers to "ab" have some 20 tokens
    return scripted_model(engine=PacedEngine(script, capacity=CAPACITY, **limits))


@contextlib.contextmanager
def served(
    model: Model | None = None,
    *,
    key: str = "secret",
    max_waiting: int = 8,
    limits: dict[str, Any] | None = None,
    gate: dict[str, Any] | None = None,
    send_buffer: int | None = None,
) -> Iterator[Served]:
    """A server in a thread of this process."""
    model = model or paced_model()
    listener = open_socket("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    metrics = Metrics()
    worker = Worker(model, max_waiting=max_waiting, finished=metrics.finished)
    asked: dict[str, Any] = {"model_name": NAME, "default_tokens": 40, "most_tokens": CAPACITY}
    app = build_app(
        worker,
        model.prompts.tokenizer,
        Limits(**asked | (limits or {})),
        Gate(**{"api_key": key} | (gate or {})),
        metrics,
    )
    started = threading.Event()
    config = uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=5)
    server = Server(config, worker, grace_s=0, ready=started.set)
    worker.start()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    found = Served(model, worker, listener.getsockname()[1], key)
    try:
        assert started.wait(10)
        yield found
    finally:
        if isinstance(model.engine, PacedEngine):
            model.engine.gate.set()
        found.client.close()
        server.should_exit = True
        thread.join(20)
        assert worker.close(ApiError(503, "over"))
        listener.close()
        assert not thread.is_alive()


def main() -> None:
    """A server in this process; says its port on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, default=0)
    parser.add_argument("--grace", type=float, default=5)
    parser.add_argument("--max-waiting", type=int, default=200)
    arguments = parser.parse_args()
    model = paced_model()
    assert isinstance(model.engine, ScriptedEngine)
    model.engine.step_s = arguments.step_ms / 1e3  # type: ignore[attr-defined]
    listener = open_socket("127.0.0.1", 0)
    serve(
        model,
        listener,
        Limits(model_name=NAME, default_tokens=40, most_tokens=CAPACITY),
        Gate(),
        max_waiting=arguments.max_waiting,
        grace_s=arguments.grace,
        ready=lambda: print(listener.getsockname()[1], flush=True),  # noqa: T201 - its output
    )


if __name__ == "__main__":
    main()
