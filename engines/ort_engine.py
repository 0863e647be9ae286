"""The engine on ONNX Runtime: IO binding over buffers that are ours and stay where they are.

On a GPU (not run on one so far) the same, with the buffers on the device and copies around each run.

Each shape a step can have is bound once, every layer's KV cache to the same memory as input and
output. A step then writes its numbers and runs; only a mask that got longer is bound again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.bundle import Bundle
from lade_edge.engines.cuda_driver import Driver, probe_driver
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.device_cache import DeviceKVCache
from lade_edge.engines.errors import CapacityError, ConfigError, EngineError
from lade_edge.engines.kv_cache import HostKVCache
from lade_edge.engines.manifest import GraphEntry
from lade_edge.engines.masks import StepMask
from lade_edge.engines.ort_binding import StepBinding, StepBuffers
from lade_edge.engines.ort_device_binding import DeviceStepBuffers, tensorrt_provider_options
from lade_edge.engines.ort_session import (
    first_line,
    keeps_whole_scores,
    library_version,
    open_session,
)
from lade_edge.engines.protocol import (
    WIDEST_STEP,
    BoolArray,
    EngineSpec,
    Float32Array,
    Ids,
    Int64Array,
    StepResult,
)
from lade_edge.engines.single_sequence import SingleSequence

_INT8_CACHE_SINCE = (1, 27)
PREFILL_CHUNK = 256  # tokens; wide enough to be compute-bound, small enough for the mask buffer


class OnnxRuntimeEngine(SingleSequence):
    """Runs a bundle's canonical or lowered graph. Implements `protocol.Engine`.

    Args:
        bundle: Checked bundle with the graph to run.
        capacity: Tokens one sequence may hold; None takes the bundle's.
        max_width: Widest step, in tokens.
        threads: Threads of one operator; None leaves the choice to ONNX Runtime.
        device: ``cpu``, or the provider ``cuda`` or ``tensorrt``, which take the canonical graph.
        driver: Asks the driver whether there is a device.
        cuda: Makes the CUDA runtime.

    Raises:
        CapacityError: If the capacity exceeds the model's positions or the memory.
        EngineError: If the graph can't be loaded or doesn't have the tensors of its form.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        capacity: int | None = None,
        max_width: int = 64,
        threads: int | None = None,
        device: str = "cpu",
        driver: Callable[[], Driver] = probe_driver,
        cuda: Callable[[], CudaRuntime] = CudaRuntime,
    ) -> None:
        model, graph = bundle.manifest.model, bundle.graph
        capacity = bundle.manifest.capacity if capacity is None else capacity
        if not 1 <= capacity <= model.max_position:
            raise CapacityError(
                f"--capacity {capacity} is outside 1..{model.max_position}, the positions this "
                "model was made for; choose one inside"
            )
        if threads is not None and threads < 1:
            raise ConfigError(f"--threads is {threads}, expected at least 1")
        if threads is not None and threads > (os.cpu_count() or threads):
            raise ConfigError(
                f"--threads is {threads}, this machine has {os.cpu_count()} processors; lower it"
            )
        if not 1 <= max_width <= WIDEST_STEP:
            raise ConfigError(
                f"max_width is {max_width}, expected 1 to {WIDEST_STEP} tokens a step"
            )
        self._slots = capacity + max_width
        widest = max(max_width, min(PREFILL_CHUNK, capacity))
        on_device = device != "cpu"
        where = device
        if on_device:
            found = driver()
            _check_device(bundle, device, found)
            where = f"{device} on {found.devices[0].name}"
        provider_options = {}
        if device == "tensorrt":
            provider_options = tensorrt_provider_options(
                model, widest=widest, max_rows=max_width, slots=self._slots
            )
        if graph.cache_type is not None:
            _check_library(graph)
        self._session = open_session(
            bundle.graph_path, threads=threads, device=device, provider_options=provider_options
        )
        self._spec = EngineSpec(
            name=_name(graph, where),
            device="cuda" if on_device else "cpu",
            vocab_size=model.vocab_size,
            capacity=capacity,
            max_width=max_width,
            max_position=model.max_position,
            top_k=model.top_k,
            # the standard Attention operator takes a far slower path for one query than for two
            plain_width=2 if graph.form == "canonical" and max_width > 1 and not on_device else 1,
        )
        self._dense = graph.form == "canonical"
        self._check_inputs(model.num_layers, windowed=model.sliding_window is not None)
        float_type = np.dtype(graph.float_type)
        self._widest = widest
        # one row alone takes other kernels, which round otherwise: a prompt's results would depend
        # on how much of it was in the cache
        self._narrowest = min(2, widest)
        self._write_index = np.zeros(1, np.int64)
        self._last_slot = np.zeros(1, np.int32)
        self._total = np.zeros(1, np.int32)
        self._causal = np.tri(widest, dtype=np.bool_)
        fixed: dict[str, npt.NDArray[Any]] = {
            "write_index": self._write_index,
            "seqlens_k": self._last_slot,
            "total_length": self._total,
        }
        shape = (model.num_layers, model.num_kv_heads, self._slots, model.head_size)
        sizes = {
            "widest": widest,
            "max_rows": max_width,
            "vocab_size": model.vocab_size,
            "top_k": model.top_k,
        }
        self._cache: HostKVCache | DeviceKVCache
        self._buffers: StepBuffers | DeviceStepBuffers
        if on_device:
            runtime = cuda()
            device_cache = DeviceKVCache(runtime, *shape, float_type)
            self._cache = device_cache
            self._buffers = DeviceStepBuffers(
                self._session, self._names, runtime, **sizes,
                fixed=fixed, cache=device_cache, float_type=float_type,
            )  # fmt: skip
        else:
            host_cache = HostKVCache(*shape, graph.cache_dtype)
            self._cache = host_cache
            self._buffers = StepBuffers(
                self._session, self._names, **sizes, fixed=fixed, cache=host_cache
            )
        windows = {"attn_mask": None, "attn_mask_window": model.sliding_window}
        self._masks = {
            name: StepMask(float_type, widest, self._slots, window=window, whole=self._dense)
            for name, window in windows.items()
            if name in self._names
        }
        self._last: StepBinding | None = None

    def prefill(self, tokens: Int64Array) -> StepResult:
        """Append tokens as a causal chain in chunks; see `protocol.Engine.prefill`."""
        self._check_room(len(tokens))
        chunk = self._widest
        seconds = 0.0
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            count = len(part)
            if count < self._narrowest:  # what more rows write stays beyond the committed slots
                part = np.resize(part, self._narrowest)
            width = len(part)
            positions = np.arange(self._length, self._length + width)
            np.minimum(positions, self._spec.max_position - 1, out=positions)
            last = np.array([count - 1])
            result = self._run(part, positions, self._causal[:width, :width], last)
            self._length += count
            seconds += self._run_s
        self._run_s = seconds
        return result

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        """Run tokens without committing them; see `protocol.Engine.step`."""
        if not 1 <= len(tokens) <= self._spec.max_width:
            raise CapacityError(
                f"a step of {len(tokens)} tokens is outside 1..{self._spec.max_width}, what this "
                "engine was opened for"
            )
        return self._run(tokens, positions, visible, rows)

    def logits(self, index: int) -> Float32Array:
        """Logits of a wanted row of the last step; a view, valid until the next step."""
        if self._last is None:
            raise ValueError("no step was run yet")
        return self._last.logits[index]

    def keep(self, slots: Sequence[int]) -> None:
        """Commit rows of the last step; see `protocol.Engine.keep`."""
        self._cache.compact(self._length, slots)
        self._length += len(slots)

    def _run(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        length, width = self._length, len(tokens)
        bound = self._buffers.binding(width, len(rows))
        bound.packer.pack_into(bound.tokens, 0, *tokens)
        bound.packer.pack_into(bound.positions, 0, *positions)
        bound.rows[:] = rows
        self._write_index[0] = length
        self._last_slot[0] = length + width - 1
        for name, mask in self._masks.items():
            mask.write(length, visible, positions)
            self._total[0] = mask.columns
            if bound.columns.get(name) != mask.columns:
                bound.bind_mask(name, mask.view(width))
        started = perf_counter()
        try:
            self._buffers.run(bound)
        except Exception as error:  # the library raises its own types and bare RuntimeError alike
            raise EngineError(
                f"onnxruntime failed in a step of {width} tokens ({first_line(error)}); the graph "
                "doesn't fit its manifest or this library, export the model again"
            ) from error
        self._run_s = perf_counter() - started
        self._last = bound
        return bound.result

    def _check_inputs(self, num_layers: int, *, windowed: bool) -> None:
        inputs = {tensor.name for tensor in self._session.get_inputs()}
        outputs = {tensor.name for tensor in self._session.get_outputs()}
        caches = {f"{kind}_cache.{layer}" for kind in "kv" for layer in range(num_layers)}
        expected = {"input_ids", "position_ids", "attn_mask", "logit_rows"} | caches
        expected |= {"write_index"} if self._dense else {"seqlens_k", "total_length"}
        expected |= {"attn_mask_window"} if windowed else set()
        results = {"logits", "top_logits", "top_ids"}
        results |= {name.replace("_cache.", "_cache_out.") for name in caches}
        # a graph in which every layer is windowed, or none uses positions, leaves an input out
        optional = {"attn_mask", "position_ids"} if windowed else {"position_ids"}
        if not (expected - optional <= inputs <= expected) or outputs != results:
            odd = sorted((inputs ^ expected) | (outputs ^ results))
            raise EngineError(
                f"the graph's tensors don't match its manifest ({', '.join(odd[:4])}); "
                "export the model again"
            )
        self._names = inputs | outputs


def _name(graph: GraphEntry, where: str) -> str:
    cache = f" {graph.cache_type}-cache" if graph.cache_type is not None else ""
    tiles = "" if keeps_whole_scores() else " attention in tiles"
    return f"onnxruntime {library_version()} {where} {graph.form} {graph.precision}{cache}{tiles}"


def _check_library(graph: GraphEntry) -> None:
    """Refuse libraries whose attention fails on an int8 cache, or only once it runs."""
    found = library_version()
    if tuple(int(part) for part in re.findall(r"\d+", found)[:2]) < _INT8_CACHE_SINCE:
        wanted = ".".join(map(str, _INT8_CACHE_SINCE))
        raise EngineError(
            f"{graph.file} keeps its KV cache in {graph.cache_type}, which onnxruntime takes from "
            f"{wanted} on, {found} is installed; update it or export with --kv-cache fp32"
        )


def _check_device(bundle: Bundle, device: str, driver: Driver) -> None:
    """Refuse a graph or a machine that has no place for it, before the library is asked."""
    if bundle.graph.form != "canonical":
        raise EngineError(
            f"{bundle.graph.file} is lowered for a CPU and --device {device} takes the canonical "
            "graph; the bundle has none, export again without --slim"
        )
    if not driver.devices:
        raise EngineError(
            f"--device {device} can't be used: {driver.reason}; lade-doctor shows what is here"
        )
