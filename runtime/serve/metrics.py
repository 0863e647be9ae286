"""Figures for Prometheus, at ``/metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable

    from lade_edge.runtime.generation import Generation

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counts what the server does."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "lade_requests",
            "Requests by path and HTTP status; 499 for clients that left before an answer began",
            ["path", "status"],
            registry=self._registry,
        )
        self._prompt = self._counter("prompt_tokens", "Tokens of prompts")
        self._reused = self._counter("reused_tokens", "Prompt tokens the KV cache already held")
        self._output = self._counter("output_tokens", "Tokens generated in finished requests")
        self._steps = self._counter("steps", "Decode steps; output over steps is the gain in steps")
        self._wait = self._histogram("wait_seconds", "Time in the queue")
        self._first = self._histogram("first_token_seconds", "From leaving the queue to a token")
        self._decode = self._histogram("decode_seconds", "Decode time after the first token")

    def watch(self, *, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        """Show how many requests wait and run."""
        for name, help_text, count in (
            ("lade_requests_waiting", "Requests in the queue", waiting),
            ("lade_requests_running", "Requests the engine works on", running),
        ):
            Gauge(name, help_text, registry=self._registry).set_function(count)

    def answered(self, path: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()

    def finished(self, generation: Generation, waited_s: float) -> None:
        """Count a generation that ran to its end."""
        stats = generation.stats
        self._prompt.inc(stats.prompt_tokens)
        self._reused.inc(stats.reused_tokens)
        self._output.inc(stats.tokens)
        self._steps.inc(stats.steps)
        self._wait.observe(waited_s)
        self._first.observe(stats.time_to_first_token_s)
        self._decode.observe(stats.engine_s + stats.host_s + stats.text_s)

    def text(self) -> bytes:
        """All figures in Prometheus' text form."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(f"lade_{name}", help_text, registry=self._registry)

    def _histogram(self, name: str, help_text: str) -> Histogram:
        return Histogram(f"lade_{name}", help_text, buckets=_SECONDS, registry=self._registry)
