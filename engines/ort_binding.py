"""IO bindings of ONNX Runtime, one per shape of a step, over memory that is allocated once."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lade_edge.engines.kv_cache import HostKVCache
from lade_edge.engines.ort_session import value_over
from lade_edge.engines.protocol import Float32Array, Int64Array, StepResult

_MAX_BINDINGS = 1024


class Rows(Protocol):
    """What gives float32 rows by number."""

    def __getitem__(self, index: int, /) -> Float32Array:
        """Row ``(V,)``."""


class StepBinding:
    """A step of one width with one number of wanted rows: what to write, what to run, what to read.

    Attributes:
        binding: ``onnxruntime.IOBinding`` of every input and output.
        packer: Writes T numbers into ``tokens`` or ``positions``. A step's weights drive everything
            out of the caches, and numpy's way of taking a list is long code to fetch again.
        tokens: Memory of ``(T,)`` int64, to be written.
        positions: Memory of ``(T,)`` int64, to be written.
        rows: ``(R,)`` int64, to be written.
        result: Views of the outputs.
        logits: ``(R, V)`` float32 view of the output, or rows fetched one by one from a device.
        columns: Length of each mask as it is bound.
    """

    __slots__ = ("binding", "columns", "logits", "packer", "positions", "result", "rows", "tokens")

    def __init__(
        self,
        binding: Any,
        *,
        tokens: memoryview,
        positions: memoryview,
        rows: Int64Array,
        result: StepResult,
        logits: Rows,
    ) -> None:
        self.binding = binding
        self.packer = Struct(f"{len(tokens)}q")
        self.tokens = tokens
        self.positions = positions
        self.rows = rows
        self.result = result
        self.logits = logits
        self.columns: dict[str, int] = {}

    def bind_mask(self, name: str, mask: npt.NDArray[Any]) -> None:
        """Bind a mask ``(1, 1, T, columns)``."""
        self.binding.bind_ortvalue_input(name, value_over(mask))
        self.columns[name] = mask.shape[-1]


class StepBuffers:
    """Inputs and outputs of all steps, and the bindings over them.

    Args:
        session: The ``onnxruntime.InferenceSession``.
        names: Inputs and outputs the graph has; others are left out.
        widest: Tokens of the widest step or prefill chunk.
        max_rows: Most wanted rows of a step.
        vocab_size: Width of a logits row.
        top_k: Candidates per row.
        fixed: Inputs of constant shape.
        cache: KV cache, bound as input and output alike.
    """

    def __init__(
        self,
        session: Any,
        names: set[str],
        *,
        widest: int,
        max_rows: int,
        vocab_size: int,
        top_k: int,
        fixed: Mapping[str, npt.NDArray[Any]],
        cache: HostKVCache,
    ) -> None:
        self._session = session
        self._names = names
        self._input_ids = np.zeros((1, widest), np.int64)
        self._position_ids = np.zeros((1, widest), np.int64)
        self._rows = np.zeros(widest, np.int64)
        self._logits = np.empty((1, max_rows, vocab_size), np.float32)
        self._top_logits = np.empty((1, max_rows, top_k), np.float32)
        self._top_ids = np.empty((1, max_rows, top_k), np.int64)
        self._fixed = {name: value_over(array) for name, array in fixed.items() if name in names}
        self._caches: dict[str, Any] = {}
        for layer in range(len(cache.data) // 2):
            self._caches[f"k_cache.{layer}"] = value_over(cache.keys(layer)[None])
            self._caches[f"v_cache.{layer}"] = value_over(cache.values(layer)[None])
        self._bindings: dict[tuple[int, int], StepBinding] = {}

    def binding(self, width: int, num_rows: int) -> StepBinding:
        """The binding of steps of ``width`` tokens of which ``num_rows`` are wanted."""
        return self._bindings.get((width, num_rows)) or self._bind(width, num_rows)

    def run(self, bound: StepBinding) -> None:
        """Run the session over a binding's memory."""
        self._session.run_with_iobinding(bound.binding)

    def _bind(self, width: int, num_rows: int) -> StepBinding:
        binding = self._session.io_binding()
        inputs = {
            "input_ids": self._input_ids[:, :width],
            "position_ids": self._position_ids[:, :width],
            "logit_rows": self._rows[:num_rows],
        }
        outputs: dict[str, npt.NDArray[Any]] = {
            "logits": self._logits[:, :num_rows],
            "top_logits": self._top_logits[:, :num_rows],
            "top_ids": self._top_ids[:, :num_rows],
        }
        values = {name: value_over(array) for name, array in inputs.items() if name in self._names}
        for name, value in (values | self._fixed | self._caches).items():
            binding.bind_ortvalue_input(name, value)
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, value_over(array))
        for name, value in self._caches.items():
            binding.bind_ortvalue_output(name.replace("_cache.", "_cache_out."), value)
        if len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.clear()
        bound = self._bindings[width, num_rows] = StepBinding(
            binding,
            tokens=self._input_ids[0, :width].data,
            positions=self._position_ids[0, :width].data,
            rows=self._rows[:num_rows],
            result=StepResult(self._top_ids[0, :num_rows], self._top_logits[0, :num_rows]),
            logits=self._logits[0, :num_rows],
        )
        return bound
