"""What an engine is: the contract between the decode loop and whatever runs the graph.

One engine serves one sequence. It owns the KV cache. A *slot* is a row of the cache; the first
``length`` slots are committed, and slot ``i < length`` holds the token at position ``i``. A step
writes its ``T`` tokens to slots ``length .. length+T-1`` and computes results for the wanted rows;
`Engine.keep` then commits some of them. Rows that aren't kept are garbage: masked, overwritten by
the next step. Trimming only ever moves ``length``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Ids = Sequence[int] | Int64Array

WIDEST_STEP = 1024  # tokens; lowered graphs have rotary tables for this many slots beyond the last


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What the decode loop must know about an engine.

    Attributes:
        name: Engine with its version and graph in words, e.g. ``"onnxruntime 1.32 cpu fp32"``.
        device: ``"cpu"`` or ``"cuda"``; picks defaults for the draft shape.
        vocab_size: Width of a logits row.
        capacity: Largest number of tokens (prompt + output) one sequence may hold.
        max_width: Widest step the engine accepts, in tokens. Its scratch rows come on top of
            ``capacity``, so any step with ``length <= capacity`` fits.
        max_position: Largest legal position id plus one; never less than ``capacity``.
        top_k: Candidates returned per row, at least 1.
        plain_width: Width at which plain decoding runs (padded up to it).
    """

    name: str
    device: str
    vocab_size: int
    capacity: int
    max_width: int
    max_position: int
    top_k: int
    plain_width: int = 1


class StepResult(NamedTuple):
    """Results of one step for its wanted rows, in the order asked for.

    The arrays belong to the engine and are overwritten by its next step.

    Attributes:
        top_ids: ``(R, K)`` int64, best first; column 0 is the argmax (lowest id on a tie).
        top_logits: ``(R, K)`` float32, the logits of ``top_ids``.
    """

    top_ids: Int64Array
    top_logits: Float32Array


class Engine(Protocol):
    """Runs steps of several tokens over an in-place KV cache."""

    @property
    def spec(self) -> EngineSpec:
        """The fixed facts of this engine."""

    @property
    def length(self) -> int:
        """Committed slots, ``P`` in the paper's notation."""

    @property
    def run_s(self) -> float:
        """Seconds the last `step` or `prefill` spent inside the engine library itself.

        What is left of a step's time is the host's: masks and bindings here, drafts and
        verification in the decode loop.
        """

    def prefill(self, tokens: Int64Array) -> StepResult:
        """Append ``tokens`` as a causal chain, in chunks, and commit them all.

        Args:
            tokens: ``(n,)`` int64, n >= 1; they take positions ``length .. length+n-1``.

        Returns:
            The result of the last token, one row.

        Raises:
            CapacityError: If ``length + n`` exceeds the capacity.
        """

    def step(
        self,
        tokens: Ids,
        positions: Ids,
        visible: BoolArray,
        rows: Int64Array,
    ) -> StepResult:
        """Run ``T`` tokens at once; nothing is committed yet.

        Every token sees all committed slots and, among the step's own tokens, those its row of
        ``visible`` names. Sliding-window layers narrow both by position.

        Args:
            tokens: T token ids in slot order, 1 <= T <= ``spec.max_width``; a list is quickest.
            positions: T positions, each below ``spec.max_position``.
            visible: ``(T, T)`` bool, lower triangular, diagonal set; row = query, column = key. A
                read-only array promises never to change, so that what is made of it can be kept.
            rows: ``(R,)`` int64 indices below T whose results are wanted, R >= 1.

        Returns:
            Results of ``rows``.
        """

    def logits(self, index: int) -> Float32Array:
        """Full logits ``(V,)`` float32 of wanted row number ``index`` of the last step.

        A view into the engine's own memory where it lies on the host, else a fresh copy.
        """

    def keep(self, slots: Sequence[int]) -> None:
        """Commit rows of the last step and drop the others.

        Args:
            slots: Step indices, ascending, ``slots[i] >= i``. Row ``slots[i]``
                moves to slot ``length + i``; an index already in place costs nothing. Empty is
                allowed and commits nothing.
        """

    def reset(self, length: int = 0) -> None:
        """Trim the committed slots to ``length`` (at most the present one); 0 starts afresh."""
