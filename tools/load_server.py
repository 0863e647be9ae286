"""Many clients at once against a running server: does each get the answer it would get alone?

    lade-serve --engine BUNDLE --port 8000 --max-waiting 200 &
    python tools/load_server.py --url http://127.0.0.1:8000 --clients 64 --minutes 10

First every prompt is asked alone. Then each client asks for random ones without a pause; a quarter of
the requests leave in the middle or are read slowly. Prints one JSON object; exits 1 if an answer was
another one's, a status wasn't proper, or memory grew after warming up (the first fifth of the time).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import httpx

GROWTH = 1.10  # of resident memory after the warm-up, at most
WORDS = [
    "a",
    "b",
    "c",
    "abc",
    "def",
    "hat",
    "the",
    "quick",
    "brown",
    "fox",
    "counts",
    "to",
    "ten",
    "and",
    "asks",
    "why",
]
PATIENCE_S = 5.0  # after a refusal; what the server asks for may be longer than a test


class RefusedError(Exception):
    pass


class Load:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.counts: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.problems: list[str] = []
        self.memory: list[tuple[float, float]] = []
        self.latencies: list[float] = []
        self.random = random.Random(arguments.seed)
        self.asks = [self.ask(number) for number in range(arguments.prompts)]
        self.expected: list[tuple[str, int]] = []

    def ask(self, number: int) -> dict[str, Any]:
        text = " ".join(self.random.choices(WORDS, k=self.random.randint(1, 24)))
        fields: dict[str, Any] = {"max_tokens": self.random.choice([8, 20, 40])}
        if self.arguments.mode:
            fields["mode"] = self.arguments.mode
        if number % 3 == 0:
            fields |= {"temperature": 0.8, "seed": number}
        if number % 2:
            return fields | {"messages": [{"role": "user", "content": text}]}
        return fields | {"prompt": text}

    def path(self, ask: dict[str, Any]) -> str:
        return "/v1/chat/completions" if "messages" in ask else "/v1/completions"

    async def check(self, answer: httpx.Response) -> None:
        self.statuses[answer.status_code] += 1
        if answer.status_code == 429:
            await asyncio.sleep(min(PATIENCE_S, float(answer.headers["retry-after"])))
            raise RefusedError
        answer.raise_for_status()

    async def whole(self, client: httpx.AsyncClient, ask: dict[str, Any]) -> tuple[str, int]:
        answer = await client.post(self.path(ask), json=ask)
        await self.check(answer)
        body = answer.json()
        choice = body["choices"][0]
        text = choice["message"]["content"] if "messages" in ask else choice["text"]
        return text, body["usage"]["completion_tokens"]

    async def streamed(
        self, client: httpx.AsyncClient, ask: dict[str, Any], *, leave_after: int, pause_s: float
    ) -> tuple[str, int] | None:
        """Text and count of tokens; None if left."""
        fields = ask | {"stream": True, "stream_options": {"include_usage": True}}
        text, count, events = "", -1, 0
        async with client.stream("POST", self.path(ask), json=fields) as answer:
            await self.check(answer)
            async for line in answer.aiter_lines():
                if not line or line == "data: [DONE]":
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"]["message"])
                if chunk["choices"]:
                    choice = chunk["choices"][0]
                    text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                else:
                    count = chunk["usage"]["completion_tokens"]
                events += 1
                if events == leave_after:
                    return None
                if pause_s:
                    await asyncio.sleep(pause_s)
        return text, count

    async def client(self, number: int, until: float) -> None:
        dice = random.Random(self.arguments.seed * 1000 + number)
        async with self.connection() as client:
            while time.monotonic() < until:
                which = dice.randrange(len(self.asks))
                kind = dice.choices(["whole", "streamed", "left", "slow"], [3, 3, 1, 1])[0]
                started = time.monotonic()
                found: tuple[str, int] | None
                try:
                    if kind == "whole":
                        found = await self.whole(client, self.asks[which])
                    else:
                        found = await self.streamed(
                            client,
                            self.asks[which],
                            leave_after=dice.randint(1, 6) if kind == "left" else -1,
                            pause_s=dice.uniform(0.005, 0.05) if kind == "slow" else 0,
                        )
                except RefusedError:
                    self.counts["refused"] += 1
                    continue
                except (httpx.HTTPError, ValueError, KeyError) as error:
                    self.problems.append(f"{kind}: {error!r}")
                    continue
                if found is None:
                    self.counts["left"] += 1
                elif found == self.expected[which]:
                    self.counts[kind] += 1
                    self.latencies.append(time.monotonic() - started)
                else:
                    self.counts["wrong"] += 1
                    self.problems.append(f"{kind} {which}: {found} for {self.expected[which]}")

    def connection(self) -> httpx.AsyncClient:
        key = self.arguments.api_key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.arguments.url, headers=headers, timeout=600)

    async def watch(self, until: float) -> None:
        async with self.connection() as client:
            started = time.monotonic()
            while time.monotonic() < until:
                for line in (await client.get("/metrics")).text.splitlines():
                    if line.startswith("process_resident_memory_bytes "):
                        self.memory.append(
                            (time.monotonic() - started, float(line.split()[1]) / 1e6)
                        )
                await asyncio.sleep(max(0.2, self.arguments.seconds / 200))

    async def run(self) -> int:
        async with self.connection() as client:
            for ask in self.asks:
                self.expected.append(await self.whole(client, ask))
        until = time.monotonic() + self.arguments.seconds
        clients = [self.client(number, until) for number in range(self.arguments.clients)]
        await asyncio.gather(self.watch(until), *clients)
        warm = [size for second, size in self.memory if second > self.arguments.seconds / 5]
        grew = max(warm[-5:]) / warm[0] if warm else 0.0
        proper = set(self.statuses) <= {200, 429}
        latencies = sorted(self.latencies) or [0.0]
        report = {
            "clients": self.arguments.clients,
            "mode": self.arguments.mode,
            "seconds": self.arguments.seconds,
            **{kind: self.counts[kind] for kind in ("whole", "streamed", "slow", "left", "refused", "wrong")},
            "statuses": dict(self.statuses),
            "memory_mb": [round(warm[0], 1), round(warm[-1], 1)] if warm else [],
            "memory_grew": round(grew, 3),
            "latency_s": [round(latencies[int(q * (len(latencies) - 1))], 3) for q in (0.5, 0.99)],
            "problems": self.problems[:5],
            "num_problems": len(self.problems),
        }  # fmt: skip
        print(json.dumps(report))
        return int(bool(self.problems) or not proper or not 0 < grew <= GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--api-key")
    parser.add_argument("--mode", help="of every request, e.g. exact (default: the server's)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--prompts", type=int, default=24, help="different requests")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.minutes is not None:
        arguments.seconds = 60 * arguments.minutes
    return asyncio.run(Load(arguments).run())


if __name__ == "__main__":
    sys.exit(main())
