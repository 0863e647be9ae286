"""An engine that remembers the logits behind every committed row, for comparing runs bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from lade_edge.engines.protocol import (
    BoolArray,
    Engine,
    EngineSpec,
    Float32Array,
    Ids,
    Int64Array,
    StepResult,
)


class RecordingEngine:
    """Passes everything on to another engine and keeps digests of what was committed.

    Attributes:
        digests: One per committed row of a step, in order: of its full logits.

    Args:
        engine: Runs the steps. Every kept slot has to be among the wanted rows, in slot order.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.digests: list[bytes] = []

    @property
    def spec(self) -> EngineSpec:
        return self._engine.spec

    @property
    def length(self) -> int:
        return self._engine.length

    @property
    def run_s(self) -> float:
        return self._engine.run_s

    def prefill(self, tokens: Int64Array) -> StepResult:
        return self._engine.prefill(tokens)

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        return self._engine.step(tokens, positions, visible, rows)

    def logits(self, index: int) -> Float32Array:
        return self._engine.logits(index)

    def keep(self, slots: Sequence[int]) -> None:
        for slot in slots:
            row = self._engine.logits(slot)
            self.digests.append(hashlib.blake2b(row.tobytes(), digest_size=16).digest())
        self._engine.keep(slots)

    def reset(self, length: int = 0) -> None:
        self._engine.reset(length)
