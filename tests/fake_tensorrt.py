"""Stand-ins for TensorRT and the CUDA runtime that do the work on host memory.

The "device" is host memory at real addresses; a "plan" is the lowered ONNX graph, run on ONNX Runtime
over exactly the addresses and shapes the adapter set. What is checked with them is our own code:
profiles, padding, masks, addresses, copies, the order of what is queued. They say nothing about
TensorRT.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime

from lade_edge.engines.cuda_driver import Device, Driver
from lade_edge.engines.ort_session import EXACT_WEIGHTS
from lade_edge.engines.tensorrt_library import TensorRTLibrary

ALIGNMENT = 256
STRIPPED = b"a plan without weights"
_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
}
_NAMES = {np.float32: "FLOAT", np.float16: "HALF", np.int64: "INT64"}
ONE_DEVICE = Driver(
    version="12.6",
    devices=(Device(name="Fake", compute_capability="8.7", memory_bytes=8 << 30, integrated=True),),
)


class FakeCudaApi:
    """The calls of ``cuda.bindings.runtime`` that the engines make.

    Args:
        can_capture: Whether work can be recorded as a graph.

    Attributes:
        calls: Names of the calls, in order.
    """

    cudaMemcpyKind = SimpleNamespace(  # noqa: N815
        cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2, cudaMemcpyDeviceToDevice=3
    )
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815

    def __init__(self, *, can_capture: bool = True, memory_bytes: int = 1 << 30) -> None:
        self.calls: list[str] = []
        self._can_capture = can_capture
        self._free = memory_bytes
        self._blocks: list[Any] = []
        self._recorded: list[Callable[[], None]] | None = None

    def queue(self, work: Callable[[], None]) -> None:
        """Do it, or record it while a graph is captured."""
        if self._recorded is None:
            work()
        else:
            self._recorded.append(work)

    def cudaStreamCreate(self) -> tuple[int, int]:  # noqa: N802
        return 0, 77

    def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802
        if size > self._free:
            return 2, 0
        self._free -= size
        block = ctypes.create_string_buffer(b"\xff" * (size + ALIGNMENT), size + ALIGNMENT)
        self._blocks.append(block)
        return 0, -(-ctypes.addressof(block) // ALIGNMENT) * ALIGNMENT

    cudaMallocHost = cudaMalloc  # noqa: N815

    def cudaMemset(self, address: int, value: int, size: int) -> tuple[int]:  # noqa: N802
        ctypes.memset(address, value, size)
        return (0,)

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: int, stream: int
    ) -> tuple[int]:
        self.calls.append("cudaMemcpyAsync")
        assert stream == 77
        self.queue(lambda: _copy(target, source, size))
        return (0,)

    def cudaMemcpy2DAsync(  # noqa: N802
        self, target: int, target_pitch: int, source: int, source_pitch: int,
        size: int, count: int, kind: int, stream: int,
    ) -> tuple[int]:  # fmt: skip
        self.calls.append("cudaMemcpy2DAsync")
        assert size <= min(target_pitch, source_pitch)
        assert abs(target - source) >= size, "a device copies in no particular order"
        for row in range(count):
            ctypes.memmove(target + row * target_pitch, source + row * source_pitch, size)
        return (0,)

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:  # noqa: N802
        assert self._recorded is None
        return (0,)

    def cudaStreamBeginCapture(self, stream: int, mode: int) -> tuple[int]:  # noqa: N802
        if not self._can_capture:
            return (900,)
        self._recorded = []
        return (0,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[int, Any]:  # noqa: N802
        recorded, self._recorded = self._recorded, None
        return (0, recorded) if recorded is not None else (901, None)

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> tuple[int, Any]:  # noqa: N802
        return 0, graph

    def cudaGraphLaunch(self, graph: Any, stream: int) -> tuple[int]:  # noqa: N802
        self.calls.append("cudaGraphLaunch")
        for work in graph:
            work()
        return (0,)

    def cudaGetLastError(self) -> tuple[int]:  # noqa: N802
        return (0,)

    def cudaGetErrorString(self, status: int) -> tuple[int, bytes]:  # noqa: N802
        return 0, {2: b"out of memory"}.get(status, b"unknown error")


def _copy(target: int, source: int, size: int) -> None:
    ctypes.memmove(target, source, size)


class _Context:
    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_device_memory(self, address: int, size: int) -> None:
        assert size == self._engine.device_memory_size_v2

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        return True

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address % ALIGNMENT == 0, name
        self._addresses[name] = address
        return True

    def execute_async_v3(self, stream: int) -> bool:
        self._engine.api.queue(self._run)
        return True

    def _run(self) -> None:
        session, feeds = self._engine.session, {}
        for value in session.get_inputs():
            shape = self._shapes.get(value.name, value.shape)
            feeds[value.name] = self._array(value.name, shape, _NUMPY[value.type]).copy()
        results = self._engine.run_session(feeds)
        for value, result in zip(session.get_outputs(), results, strict=True):
            self._array(value.name, result.shape, result.dtype)[...] = result

    def _array(self, name: str, shape: Any, dtype: Any) -> Any:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        buffer = (ctypes.c_byte * size).from_address(self._addresses[name])
        return np.frombuffer(buffer, dtype).reshape(shape)


class FakeEngine:
    """An ``ICudaEngine`` over an ONNX graph."""

    device_memory_size_v2 = 1000

    def __init__(self, api: FakeCudaApi, path: str) -> None:
        self.api = api
        if path:  # a stripped plan holds none: it is loaded when it is refitted
            self.load(path)

    def load(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry(EXACT_WEIGHTS, "1")
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        values = [*self.session.get_inputs(), *self.session.get_outputs()]
        self._types = {value.name: value.type for value in values}
        self._names = list(self._types)
        self.num_io_tensors = len(self._names)

    def run_session(self, feeds: dict[str, Any]) -> Any:
        return self.session.run(None, feeds)

    def get_tensor_name(self, index: int) -> str:
        return str(self._names[index])

    def get_tensor_dtype(self, name: str) -> Any:
        return SimpleNamespace(name=_NAMES[_NUMPY[self._types[name]]])

    def get_aliased_input_tensor(self, name: str) -> str:
        return name.replace("_cache_out.", "_cache.") if "_cache_out." in name else ""

    def create_execution_context(self, strategy: int) -> _Context:
        return _Context(self)


class FakeRefitter:
    """A ``Refitter`` and what ``OnnxParserRefitter`` hands it; `UNSET` names weights nobody gave."""

    UNSET: tuple[str, ...] = ()

    def __init__(self, engine: FakeEngine, logger: Any) -> None:
        self.engine = engine
        self.path = ""

    def get_missing_weights(self) -> list[str]:
        return list(self.UNSET)

    def refit_cuda_engine(self) -> bool:
        self.engine.load(self.path)
        return True


class FakeParserRefitter:
    num_errors = 0

    def __init__(self, refitter: FakeRefitter, logger: Any) -> None:
        self._refitter, self._logger = refitter, logger

    def refit_from_file(self, path: str) -> bool:
        self._refitter.path = path
        if Path(path).stat().st_size:
            return True
        self._logger.log(FakeLogger.Severity.ERROR, "no graph in it")
        return False


class FakeLogger:
    class Severity(IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2


def fake_library(api: FakeCudaApi, version: str = "10.9.0") -> Callable[[str], TensorRTLibrary]:
    """An importer of a library whose plans are files that name an ONNX graph."""

    class Runtime:
        def __init__(self, logger: Any) -> None:
            self._logger = logger

        def deserialize_cuda_engine(self, plan: bytes) -> FakeEngine | None:
            if plan == STRIPPED:
                return FakeEngine(api, "")
            path = Path(plan.decode())
            if not path.is_file():
                self._logger.log(FakeLogger.Severity.ERROR, "magic tag doesn't match")
                return None
            return FakeEngine(api, str(path))

    module = SimpleNamespace(
        Runtime=Runtime,
        ILogger=FakeLogger,
        ExecutionContextAllocationStrategy=SimpleNamespace(USER_MANAGED=2),
        Refitter=FakeRefitter,
        OnnxParserRefitter=FakeParserRefitter,
    )
    return lambda flavour: TensorRTLibrary(module, flavour, version)
