"""Bundles of this project, through its public API."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from peers.recorder import Recorder

from lade_edge.engines import open_bundle, open_engine, protocol
from lade_edge.runtime import load

_SCORING_WIDTH = 16


class Engine:
    """A bundle; see `peers.worker.PeerEngine`."""

    packages = ("lade-edge", "onnxruntime")
    modes = ("plain", "auto")

    def __init__(self, path: str, threads: int, ends: list[int]) -> None:
        self._path, self._threads, self._ends = path, threads, tuple(ends)
        self._model = load(path, threads=threads)
        self._model.profile()  # this device is measured once, before anything is timed
        self._scoring: protocol.Engine | None = None

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        stream = self._model.stream(ids, mode=mode, max_new_tokens=count, eos_token_ids=self._ends)
        for event in stream:
            recorder.add(event.ids)

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        if self._scoring is None:  # steps are no part of the API; a second engine takes them
            self._scoring = open_engine(
                open_bundle(self._path), max_width=_SCORING_WIDTH, threads=self._threads
            )
        engine = self._scoring
        engine.reset()
        found = []
        for start in range(0, len(ids), _SCORING_WIDTH):
            tokens = np.array(ids[start : start + _SCORING_WIDTH])
            rows = np.arange(len(tokens))
            engine.step(tokens, start + rows, np.tri(len(tokens), dtype=np.bool_), rows)
            found += [engine.logits(int(row)).copy() for row in rows]
            engine.keep(range(len(tokens)))
        return np.stack(found)
