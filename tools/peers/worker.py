"""One engine with one model in a process of its own: a JSON object a line in, one out.

    python -m peers.worker peers.engine_NAME

Requests are ``load`` (path, threads, ends), ``generate`` (mode, ids, count) and ``score``
(sequences). Whatever the libraries print goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from peers.recorder import Recorder


class PeerEngine(Protocol):
    """What a module ``engine_NAME`` gives as ``Engine(path, threads, ends)``."""

    packages: Sequence[str]
    modes: Sequence[str]

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        """Decode greedily from token ids and hand on every token as it comes."""

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """``(n, V)`` behind each of n tokens of a text that starts with them."""


class Worker:
    """Answers requests.

    Args:
        module: Name of the engine's module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._engine: PeerEngine | None = None
        self._ends: list[int] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request."""
        if request["do"] == "load":
            self._ends = request["ends"]
            engine_type = importlib.import_module(self._module).Engine
            engine = engine_type(request["path"], request["threads"], self._ends)
            self._engine = engine
            versions = {name: version(name) for name in engine.packages}
            return {"modes": list(engine.modes), "versions": versions}
        assert self._engine is not None, "load comes first"
        if request["do"] == "generate":
            recorder = Recorder(self._ends, request["count"])
            self._engine.generate(request["mode"], request["ids"], request["count"], recorder)
            return recorder.result()
        losses, best = [], []
        for ids in request["sequences"]:
            logits = self._engine.logits(ids[:-1])
            losses += cross_entropy(logits, ids[1:])
            best += logits.argmax(axis=1).tolist()
        return {"losses": losses, "best": best}


def cross_entropy(logits: npt.NDArray[np.float32], following: list[int]) -> list[float]:
    """Nats that each row of ``(n, V)`` pays for the token that follows it."""
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    total = np.log(np.exp(wide - largest[:, None]).sum(axis=1)) + largest
    return [float(loss) for loss in total - wide[np.arange(len(wide)), following]]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:  # whatever a peer's library raises is told, not handled
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
