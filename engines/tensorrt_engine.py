"""The engine on TensorRT or TensorRT-RTX: a plan, steps in width buckets, the cache on the device.

Contexts of several widths share a profile, which TensorRT allows since 10.0, and the memory they work
in, since one runs at a time.

Not run on a GPU so far. What is here is checked against stand-ins for the two libraries that run the
lowered graph on ONNX Runtime over the addresses they are given (`tests/fake_tensorrt.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines.bundle import Bundle
from lade_edge.engines.cuda_driver import Driver, probe_driver
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.device_cache import DeviceKVCache
from lade_edge.engines.errors import CapacityError, ConfigError, EngineError
from lade_edge.engines.plan import (
    IN_PLACE,
    KV_ROWS,
    ROWS,
    PlanBucket,
    PlanRecord,
    read_plan_record,
)
from lade_edge.engines.plan_check import check_capacity, check_device, check_version
from lade_edge.engines.protocol import (
    BoolArray,
    EngineSpec,
    Float32Array,
    Ids,
    Int64Array,
    StepResult,
)
from lade_edge.engines.self_test import check_self_test, note_passed, passed_before
from lade_edge.engines.single_sequence import SingleSequence
from lade_edge.engines.tensorrt_library import (
    TensorRTLibrary,
    import_tensorrt,
    last_error,
    make_logger,
)
from lade_edge.engines.tensorrt_refit import put_weights_back
from lade_edge.engines.tensorrt_step import MASKS, BucketStep, SharedState, input_shapes

_DTYPES: dict[str, str] = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT64": "int64",
    "INT32": "int32",
}


class TensorRTEngine(SingleSequence):
    """Runs a plan. Implements `protocol.Engine`.

    Args:
        bundle: From `plan_check.open_plan`.
        capacity: Tokens one sequence may hold; None takes the plan's, more than that is refused.
        max_width: Widest step, in tokens; the plan's widest bucket bounds it.
        library: Imports a flavour; None imports the one the plan was built with.
        driver: Asks the driver.
        cuda: Makes the CUDA runtime.

    Raises:
        CapacityError: If the plan or the device's memory doesn't hold the capacity.
        EngineError: If the library, the driver or the device is missing or another than the plan's,
            or the plan isn't what its fingerprint says, or fails its self-test.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        capacity: int | None = None,
        max_width: int = 64,
        library: Callable[[str], TensorRTLibrary] = import_tensorrt,
        driver: Callable[[], Driver] = probe_driver,
        cuda: Callable[[], CudaRuntime] = CudaRuntime,
    ) -> None:
        plan = bundle.graph_path
        record = read_plan_record(plan)
        capacity = check_capacity(record, plan, capacity)
        if max_width < 1:
            raise ConfigError(f"max_width is {max_width}, expected at least 1 token a step")
        found = library(record.flavour)
        check_version(record, plan, found.version)
        probed = driver()
        if not probed.devices:
            raise EngineError(
                f"{plan} can't be run: {probed.reason}; lade-doctor shows what is here"
            )
        device = probed.devices[0]
        check_device(record, plan, device.compute_capability)
        self._record = record
        self._spec = EngineSpec(
            name=f"{found.title} on {device.name} {record.form} {record.precision}",
            device="cuda",
            vocab_size=record.model.vocab_size,
            capacity=capacity,
            max_width=min(max_width, record.step_width),
            max_position=record.model.max_position,
            top_k=record.model.top_k,
        )
        self._cuda = cuda()
        self._logger = make_logger(found.module)
        self._runtime, self._engine = self._deserialise(found, plan.read_bytes())
        for name in list(record.weights or ())[:1]:
            put_weights_back(found, self._engine, self._logger, plan.with_name(Path(name).name))
        self._dtypes = self._tensor_types()
        self._shared = self._allocate(found.module)
        self._steps: dict[PlanBucket, BucketStep] = {}
        self._last: tuple[BucketStep, int] | None = None
        place = f"{found.title} {device.name} {device.compute_capability} {probed.version}"
        self._check_itself(plan, place)

    def prefill(self, tokens: Int64Array) -> StepResult:
        """Append tokens as a causal chain in chunks; see `protocol.Engine.prefill`."""
        self._check_room(len(tokens))
        seconds, start = 0.0, 0
        while start < len(tokens):
            room = self._record.slots - self._length
            bucket = choose_bucket(self._record.buckets, len(tokens) - start, 1, room)
            part = tokens[start : start + bucket.width]
            width = len(part)
            positions = np.arange(self._length, self._length + width)
            causal = np.tri(width, dtype=np.bool_)
            result = self._run(bucket, part, positions, causal, np.array([width - 1]))
            seconds += self._run_s
            self._commit(range(width))
            start += width
        self._run_s = seconds
        return result

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        """Run tokens without committing them; see `protocol.Engine.step`."""
        if not 1 <= len(tokens) <= self._spec.max_width:
            widths = sorted(p.width for p in self._record.buckets if p.rows == p.width)
            raise CapacityError(
                f"input_ids has {len(tokens)} tokens, the plan's steps are of "
                f"{', '.join(map(str, widths))} and the engine was opened for at most "
                f"{self._spec.max_width}; build the plan with other --widths"
            )
        room = self._record.slots - self._length
        bucket = choose_bucket(self._record.buckets, len(tokens), len(rows), room, whole=True)
        return self._run(bucket, tokens, positions, visible, rows)

    def logits(self, index: int) -> Float32Array:
        """Logits of a wanted row of the last step, a copy."""
        if self._last is None:
            raise ValueError("no step was run yet")
        step, num_rows = self._last
        return step.logits(range(num_rows)[index])

    def keep(self, slots: Sequence[int]) -> None:
        """Commit rows of the last step; see `protocol.Engine.keep`."""
        self._commit(slots)

    def _run(
        self,
        bucket: PlanBucket,
        tokens: Ids,
        positions: Ids,
        visible: BoolArray,
        rows: Int64Array,
    ) -> StepResult:
        step = self._steps.get(bucket)
        if step is None:
            index = self._record.profile_of(bucket)
            step = self._steps[bucket] = BucketStep(self._shared, index, bucket)
        step.write(self._length, tokens, positions, visible, rows)
        started = perf_counter()
        step.run()
        self._run_s = perf_counter() - started
        self._last = step, len(rows)
        return step.result(len(rows))

    def _commit(self, slots: Sequence[int]) -> None:
        """Queue the copies that commit rows; the next step is queued behind them."""
        if slots and self._last is not None:
            if self._record.form == ROWS:
                width = self._last[0].bucket.width
                rows = self._shared.rows_address
                self._shared.cache.take(self._length, rows, width, slots)
            else:
                self._shared.cache.compact(self._length, slots)
        self._length += len(slots)

    def _check_itself(self, plan: Path, place: str) -> None:
        """Run the fingerprint's self-test, once for each plan, library, device and driver."""
        record = self._record
        key = f"{record.plan.sha256} {place}"
        if record.self_test is None or passed_before(key):
            return
        again = record.rebuild_command(plan)
        check_self_test(self, record.self_test, record.float_type, again=again)
        note_passed(key)

    def _deserialise(self, library: TensorRTLibrary, plan: bytes) -> tuple[Any, Any]:
        runtime = library.module.Runtime(self._logger)
        if self._record.version_compatible:
            runtime.engine_host_code_allowed = True  # such a plan carries its own lean runtime
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is None:
            reason = last_error(self._logger, "no reason given")
            raise EngineError(
                f"{library.title} can't load the plan ({reason}); build it again on this machine"
            )
        return runtime, engine

    def _tensor_types(self) -> dict[str, npt.DTypeLike]:
        """Element type of every tensor of the plan, which must be those of its form."""
        engine, record = self._engine, self._record
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        expected = tensor_names(record)
        odd = sorted((set(names) ^ expected) - _OPTIONAL)
        if odd:
            raise EngineError(
                f"the plan's tensors don't match its fingerprint ({', '.join(odd[:4])}); build it "
                "again"
            )
        if record.form == IN_PLACE and hasattr(engine, "get_aliased_input_tensor"):
            for name in names:
                wanted = name.replace("_cache_out.", "_cache.")
                if wanted != name and engine.get_aliased_input_tensor(name) != wanted:
                    raise EngineError(
                        f"the plan doesn't update {wanted} in place; build it again with this "
                        "machine's TensorRT"
                    )
        types: dict[str, npt.DTypeLike] = {}
        for name in names:
            dtype = engine.get_tensor_dtype(name).name
            if dtype not in _DTYPES:
                raise EngineError(f"the plan's tensor {name} is of type {dtype}; build it again")
            types[name] = _DTYPES[dtype]
        if types["logits"] != "float32" or types["top_logits"] != "float32":
            raise EngineError("the plan's logits are not float32; build it again")
        return types

    def _allocate(self, module: Any) -> SharedState:
        record, model = self._record, self._record.model
        shape = (model.num_layers, model.num_kv_heads, record.slots, model.head_size)
        cache = DeviceKVCache(self._cuda, *shape, record.float_type)
        size = int(self._engine.device_memory_size_v2)
        address = self._cuda.allocate(size, "working memory of the plan")
        strategy = module.ExecutionContextAllocationStrategy.USER_MANAGED
        shared = SharedState(
            self._cuda,
            self._engine,
            self._logger,
            record,
            cache,
            self._dtypes,
            (address, size),
            (strategy,),
        )
        most_rows = max(bucket.rows for bucket in record.buckets)
        logits_bytes = most_rows * model.vocab_size * 4
        shared.logits_address = self._cuda.allocate(logits_bytes, "the logits of a step")
        if record.form == ROWS:
            widest = max(bucket.width for bucket in record.buckets)
            rows_bytes = cache.num_bytes // record.slots * widest
            shared.rows_address = self._cuda.allocate(rows_bytes, "the new rows of a step")
        return shared


_OPTIONAL = frozenset({"position_ids", *MASKS, *MASKS.values()})


def tensor_names(record: PlanRecord) -> set[str]:
    """Inputs and outputs a plan of this form has; masks and positions may be missing."""
    names = {*input_shapes(record, record.buckets[0]), "logits", "top_logits", "top_ids"}
    caches = {f"{kind}_cache.{layer}" for kind in "kv" for layer in range(record.model.num_layers)}
    if record.form == ROWS:
        return (names | caches | {KV_ROWS}) - {"write_index"}
    updated = {name.replace("_cache.", "_cache_out.") for name in caches}
    return (names | caches | updated) - set(MASKS.values())


def choose_bucket(
    buckets: Sequence[PlanBucket], width: int, rows: int, room: int, *, whole: bool = False
) -> PlanBucket:
    """The narrowest bucket that takes the step; for a chunk too long for any, the widest that fits.

    Args:
        buckets: Those of the plan.
        width: Tokens left to run.
        rows: Wanted rows.
        room: Slots from the first one written to the end of the cache; padding needs them too.
        whole: The step can't be cut into several.

    Raises:
        CapacityError: If none fits.
    """
    least = width if whole else 1
    fitting = [p for p in buckets if least <= p.width <= room and p.rows >= rows]
    if not fitting:
        raise CapacityError(
            f"a step of {width} tokens with {rows} wanted rows has no bucket among "
            f"{', '.join(f'{p.width}x{p.rows}' for p in buckets)} in the {room} slots left; build "
            "the plan with more --widths or a larger --capacity"
        )
    enough = [p for p in fitting if p.width >= width]
    if enough:
        return min(enough, key=lambda p: (p.width, p.rows))
    return max(fitting, key=lambda p: (p.width, -p.rows))
