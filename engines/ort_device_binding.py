"""IO bindings of ONNX Runtime over device memory: inputs copied there, results back, the cache stays.

A bound host array would be copied to the device when it is bound and never again, so nothing on the
host is bound here: the runtime sees device addresses only.

Not run on a GPU so far; `tests/engines/test_ort_device.py` runs it on host memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.device_cache import DeviceKVCache
from lade_edge.engines.manifest import ModelSpec
from lade_edge.engines.ort_binding import StepBinding
from lade_edge.engines.protocol import Float32Array, StepResult
from lade_edge.engines.step_arena import StepArena

MEMORY = "cuda"
_MAX_BINDINGS = 1024
_MASKS = ("attn_mask", "attn_mask_window")


class DeviceRows:
    """Rows of a matrix on the device, copied to the host when asked for.

    Args:
        cuda: Runtime that owns it.
        address: Of row 0.
        shape: Rows and columns of float32.
    """

    def __init__(self, cuda: CudaRuntime, address: int, shape: tuple[int, int]) -> None:
        self._cuda, self._address, self._shape = cuda, address, shape

    def __getitem__(self, index: int) -> Float32Array:
        rows, columns = self._shape
        out = np.empty(columns, np.float32)
        source = self._address + range(rows)[index] * out.nbytes
        self._cuda.download(out.ctypes.data, source, out.nbytes)
        self._cuda.synchronise()
        return out


class DeviceBinding(StepBinding):
    """A step of one shape over device memory; masks are remembered and copied before each run."""

    __slots__ = ("masks",)

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.masks: dict[str, npt.NDArray[Any]] = {}

    def bind_mask(self, name: str, mask: npt.NDArray[Any]) -> None:
        """Take a mask ``(1, 1, T, S)``; its address on the device is bound already."""
        self.masks[name] = mask
        self.columns[name] = mask.shape[-1]


class DeviceStepBuffers:
    """Inputs and outputs of all steps on a device; the counterpart of `ort_binding.StepBuffers`.

    Args:
        session: The ``onnxruntime.InferenceSession``.
        names: Inputs and outputs the graph has; others are left out.
        cuda: Device memory and copies.
        widest: Tokens of the widest step or prefill chunk.
        max_rows: Most wanted rows of a step.
        vocab_size: Width of a logits row.
        top_k: Candidates per row.
        fixed: Inputs of constant shape, on the host.
        cache: KV cache, bound as input and output alike.
        float_type: Of the masks.
    """

    def __init__(
        self,
        session: Any,
        names: set[str],
        cuda: CudaRuntime,
        *,
        widest: int,
        max_rows: int,
        vocab_size: int,
        top_k: int,
        fixed: Mapping[str, npt.NDArray[Any]],
        cache: DeviceKVCache,
        float_type: np.dtype[Any],
    ) -> None:
        self._session = session
        self._names = names
        self._cuda = cuda
        self._cache = cache
        self._vocab_size, self._top_k = vocab_size, top_k
        self._fixed = {name: array for name, array in fixed.items() if name in names}
        sizes = dict.fromkeys(("input_ids", "position_ids", "logit_rows"), (widest,))
        fixed_sizes = {name: array.shape for name, array in self._fixed.items()}
        self._inputs = StepArena(
            cuda, {name: (shape, np.int64) for name, shape in (sizes | fixed_sizes).items()}
        )
        best = (max_rows, top_k)
        self._outputs = StepArena(
            cuda, {"top_ids": (best, np.int64), "top_logits": (best, np.float32)}
        )
        self._logits = cuda.allocate(max_rows * vocab_size * 4, "the logits of a step")
        self._float_type = float_type
        mask_bytes = widest * cache.shape[2] * float_type.itemsize
        self._masks = {
            name: cuda.allocate(mask_bytes, "an attention mask") for name in _MASKS if name in names
        }
        self._bindings: dict[tuple[int, int], DeviceBinding] = {}

    def binding(self, width: int, num_rows: int) -> DeviceBinding:
        """The binding of steps of ``width`` tokens of which ``num_rows`` are wanted."""
        return self._bindings.get((width, num_rows)) or self._bind(width, num_rows)

    def run(self, bound: StepBinding) -> None:
        """Copy the inputs to the device, run, copy the best ids back."""
        assert isinstance(bound, DeviceBinding)
        for name, array in self._fixed.items():
            self._inputs.host[name][...] = array
        self._inputs.upload()
        for name, mask in bound.masks.items():
            self._cuda.upload(self._masks[name], mask.ctypes.data, mask.nbytes)
        self._cuda.synchronise()  # the session has a stream of its own
        self._session.run_with_iobinding(bound.binding)
        self._outputs.download()
        self._cuda.synchronise()

    def _bind(self, width: int, num_rows: int) -> DeviceBinding:
        binding = self._session.io_binding()
        places: dict[str, tuple[tuple[int, ...], Any, int]] = {
            "input_ids": ((1, width), np.int64, self._inputs.address["input_ids"]),
            "position_ids": ((1, width), np.int64, self._inputs.address["position_ids"]),
            "logit_rows": ((num_rows,), np.int64, self._inputs.address["logit_rows"]),
        }
        for name, array in self._fixed.items():
            places[name] = (array.shape, np.int64, self._inputs.address[name])
        for name, address in self._masks.items():
            places[name] = ((1, 1, width, self._cache.shape[2]), self._float_type, address)
        outputs: dict[str, tuple[tuple[int, ...], Any, int]] = {
            "logits": ((1, num_rows, self._vocab_size), np.float32, self._logits)
        }
        for name, dtype in (("top_ids", np.int64), ("top_logits", np.float32)):
            shape = (1, num_rows, self._top_k)
            outputs[name] = (shape, dtype, self._outputs.address[name])
        for layer in range(self._cache.num_layers):
            for kind in "kv":
                place = self._cache.shape, self._float_type, self._cache.address(kind, layer)
                places[f"{kind}_cache.{layer}"] = outputs[f"{kind}_cache_out.{layer}"] = place
        for name, (dims, dtype, address) in places.items():
            if name in self._names:
                binding.bind_input(name, MEMORY, 0, dtype, list(dims), address)
        for name, (dims, dtype, address) in outputs.items():
            binding.bind_output(name, MEMORY, 0, dtype, list(dims), address)
        if len(self._bindings) >= _MAX_BINDINGS:
            self._bindings.clear()
        host, out = self._inputs.host, self._outputs.host
        bound = self._bindings[width, num_rows] = DeviceBinding(
            binding,
            tokens=host["input_ids"][:width].data,
            positions=host["position_ids"][:width].data,
            rows=host["logit_rows"][:num_rows],
            result=StepResult(out["top_ids"][:num_rows], out["top_logits"][:num_rows]),
            logits=DeviceRows(self._cuda, self._logits, (num_rows, self._vocab_size)),
        )
        return bound


def tensorrt_provider_options(
    model: ModelSpec, *, widest: int, max_rows: int, slots: int
) -> dict[str, str]:
    """Options of ONNX Runtime's TensorRT provider: one profile over all widths, engines kept on disk.

    Without a profile the provider builds again, for up to minutes, whenever a shape leaves the range
    it has seen.

    Args:
        model: Shape of the model.
        widest: Tokens of the widest step or prefill chunk.
        max_rows: Most wanted rows.
        slots: ``S``.
    """

    def shapes(width: int, rows: int) -> str:
        found: dict[str, tuple[int, ...]] = {
            "input_ids": (1, width),
            "position_ids": (1, width),
            "logit_rows": (rows,),
            "attn_mask": (1, 1, width, slots),
        }
        if model.sliding_window is not None:
            found["attn_mask_window"] = (1, 1, width, slots)
        for layer in range(model.num_layers):
            for kind in "kv":
                name = f"{kind}_cache.{layer}"
                found[name] = (1, model.num_kv_heads, slots, model.head_size)
        return ",".join(f"{n}:{'x'.join(map(str, shape))}" for n, shape in found.items())

    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return {
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(Path(home) / "lade" / "onnxruntime-tensorrt"),
        "trt_profile_min_shapes": shapes(1, 1),
        "trt_profile_opt_shapes": shapes(min(8, widest), min(8, max_rows)),
        "trt_profile_max_shapes": shapes(widest, max_rows),
    }
