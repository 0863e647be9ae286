"""Steps of one width ready to run: a context, its memory, addresses set once, a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.device_cache import DeviceKVCache
from lade_edge.engines.errors import EngineError
from lade_edge.engines.manifest import ModelSpec
from lade_edge.engines.masks import MASKED, MaskWriter
from lade_edge.engines.plan import KV_ROWS, ROWS, PlanBucket, PlanRecord
from lade_edge.engines.protocol import BoolArray, Float32Array, Ids, Int64Array, StepResult
from lade_edge.engines.step_arena import StepArena
from lade_edge.engines.tensorrt_library import last_error

MASKS = {"attn_mask": "step_mask", "attn_mask_window": "step_mask_window"}


class SharedState:
    """What the buckets of one engine have in common.

    Args:
        cuda: Device memory and stream.
        engine: The deserialised ``ICudaEngine``.
        logger: From `tensorrt_library.make_logger`.
        record: The fingerprint.
        cache: KV cache.
        dtypes: Element type per tensor, as the engine has it.
        scratch: Address and size of the memory that contexts work in, one at a time.
        allocation: Keyword arguments of ``create_execution_context``.
    """

    def __init__(
        self,
        cuda: CudaRuntime,
        engine: Any,
        logger: Any,
        record: PlanRecord,
        cache: DeviceKVCache,
        dtypes: dict[str, npt.DTypeLike],
        scratch: tuple[int, int],
        allocation: tuple[Any, ...],
    ) -> None:
        self.cuda = cuda
        self.engine = engine
        self.logger = logger
        self.record = record
        self.cache = cache
        self.dtypes = dtypes
        self.scratch = scratch
        self.allocation = allocation
        self.logits_address = 0  # set by the engine: one buffer for the widest bucket
        self.rows_address = 0  # likewise: (2 L, H_kv, width, D), new rows of the step


class BucketStep:
    """Runs steps of up to ``bucket.width`` tokens, padded to it.

    A padded token has id and position 0 and sees nothing; its row of the cache lies beyond the step's
    and is never seen. A padded wanted row repeats row 0.

    Args:
        shared: What all buckets have in common.
        index: Number of its profile in the plan.
        bucket: Shape of the steps.
    """

    def __init__(self, shared: SharedState, index: int, bucket: PlanBucket) -> None:
        self.bucket = bucket
        self._shared = shared
        record, model = shared.record, shared.record.model
        self._writers = {
            name: MaskWriter(record.float_type, model.sliding_window if "window" in name else None)
            for name in MASKS
            if name in shared.dtypes
        }
        # the whole mask of a step, from which that of the rows form is cut in two
        self._whole = np.empty((bucket.width, record.slots), record.float_type)
        self._inputs = StepArena(shared.cuda, self._tensors(input_shapes(record, bucket)))
        self._outputs = StepArena(shared.cuda, self._tensors(result_shapes(model, bucket)))
        self._context = self._make_context(index)
        self._launch: Any = None
        self._runs = 0

    def write(
        self, length: int, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array
    ) -> None:
        """Fill the inputs of one step into host memory."""
        host, width = self._inputs.host, len(tokens)
        for name, values in (("input_ids", tokens), ("position_ids", positions)):
            if name in host:
                host[name][0, :width] = values
                host[name][0, width:] = 0
        host["logit_rows"][: len(rows)] = rows
        host["logit_rows"][len(rows) :] = rows[0]
        if "write_index" in host:
            host["write_index"][0] = length
        for name, writer in self._writers.items():
            if self._shared.record.form == ROWS:
                self._write_apart(name, writer, length, visible, positions)
            else:
                mask = host[name][0, 0]
                writer.write(mask[:width], length, visible, positions)
                mask[width:] = MASKED

    def run(self) -> None:
        """Copy the inputs to the device, run, copy the results back; returns when they are there.

        The first run is as it is, since a library may allocate in it; the second one is recorded as
        a CUDA graph where that can be done.
        """
        if self._launch is not None:
            self._launch()
        else:
            if self._runs == 1:
                self._launch = self._shared.cuda.capture(self._enqueue)
            if self._launch is not None:
                self._launch()
            else:
                self._enqueue()
        self._runs += 1
        self._shared.cuda.synchronise()

    def result(self, num_rows: int) -> StepResult:
        """Results of the wanted rows."""
        ids, best = (self._outputs.host[name][0, :num_rows] for name in ("top_ids", "top_logits"))
        return StepResult(ids.astype(np.int64, copy=False), best)

    def logits(self, index: int) -> Float32Array:
        """Logits of a wanted row, copied from the device."""
        vocab_size = self._shared.record.model.vocab_size
        out = np.empty(vocab_size, np.float32)
        address = self._shared.logits_address + index * out.nbytes
        self._shared.cuda.download(out.ctypes.data, address, out.nbytes)
        self._shared.cuda.synchronise()
        return out

    def _write_apart(
        self, name: str, writer: MaskWriter, length: int, visible: BoolArray, positions: Ids
    ) -> None:
        """The mask over committed slots, and the one among the step's own tokens."""
        host, width = self._inputs.host, len(visible)
        whole, far, near = self._whole[:width], host[name][0, 0], host[MASKS[name]][0, 0]
        writer.write(whole, length, visible, positions)
        far.fill(MASKED)
        far[:width, :length] = whole[:, :length]
        near.fill(MASKED)
        near[:width, :width] = whole[:, length : length + width]

    def _enqueue(self) -> None:
        self._inputs.upload()
        if not self._context.execute_async_v3(int(self._shared.cuda.stream)):
            reason = last_error(self._shared.logger, "no reason given")
            raise EngineError(
                f"TensorRT failed in a step of {self.bucket.width} tokens ({reason}); build the "
                "plan again on this machine"
            )
        self._outputs.download()

    def _make_context(self, index: int) -> Any:
        shared = self._shared
        context = shared.engine.create_execution_context(*shared.allocation)
        if context is None:
            reason = last_error(shared.logger, "no reason given")
            raise EngineError(f"TensorRT can't prepare the plan to run ({reason})")
        if shared.scratch[1]:
            context.set_device_memory(*shared.scratch)
        stream = int(shared.cuda.stream)
        if not context.set_optimization_profile_async(index, stream):
            raise EngineError(f"the plan has no profile {index}; build it again")
        shared.cuda.synchronise()
        for name, (shape, _) in input_shapes(shared.record, self.bucket).items():
            if name in shared.dtypes and not context.set_input_shape(name, shape):
                raise EngineError(
                    f"the plan refuses {name} of shape {list(shape)} in profile {index}; its "
                    "fingerprint says otherwise, build it again"
                )
        for name, address in self._addresses().items():
            if not context.set_tensor_address(name, address):
                raise EngineError(f"TensorRT refuses the memory of {name}; build the plan again")
        return context

    def _addresses(self) -> dict[str, int]:
        """Where every tensor of the plan lies in this bucket."""
        shared, cache = self._shared, self._shared.cache
        found = {**self._inputs.address, **self._outputs.address}
        found |= {"logits": shared.logits_address, KV_ROWS: shared.rows_address}
        for layer in range(cache.num_layers):
            for kind in "kv":
                address = cache.address(kind, layer)
                found |= {f"{kind}_cache{part}.{layer}": address for part in ("", "_out")}
        return {name: found[name] for name in shared.dtypes}

    def _tensors(
        self, shapes: dict[str, tuple[tuple[int, ...], str]]
    ) -> dict[str, tuple[tuple[int, ...], npt.DTypeLike]]:
        dtypes = self._shared.dtypes
        return {
            name: (shape, dtypes[name]) for name, (shape, _) in shapes.items() if name in dtypes
        }


def input_shapes(record: PlanRecord, bucket: PlanBucket) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of every input of a step but the cache; a plan may lack some."""
    width, slots = bucket.width, record.slots
    shapes = {
        "input_ids": ((1, width), "int64"),
        "position_ids": ((1, width), "int64"),
        "logit_rows": ((bucket.rows,), "int64"),
        "write_index": ((1,), "int64"),
    }
    for far, near in MASKS.items():
        shapes[far] = ((1, 1, width, slots), record.float_type)
        shapes[near] = ((1, 1, width, width), record.float_type)
    return shapes


def result_shapes(model: ModelSpec, bucket: PlanBucket) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and type of what every step brings back to the host."""
    shape = (1, bucket.rows, model.top_k)
    return {"top_ids": (shape, "int64"), "top_logits": (shape, "float32")}
