"""The CUDA runtime calls the engines need, through ``cuda.bindings.runtime``, with errors in words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from lade_edge.engines.errors import CapacityError, EngineError

_ALIGNMENT = 256


class CudaRuntime:
    """One device, one stream.

    Args:
        api: Module with the names of ``cuda.bindings.runtime``; None imports that.

    Raises:
        EngineError: If cuda-python is missing or the device can't be used.
    """

    def __init__(self, api: Any = None) -> None:
        self._api = api if api is not None else _import_api()
        (self.stream,) = self._call("cudaStreamCreate")
        self._kinds = self._api.cudaMemcpyKind

    def allocate(self, num_bytes: int, purpose: str) -> int:
        """Address of zeroed device memory.

        Raises:
            CapacityError: If there isn't that much; ``purpose`` says what it was for.
        """
        try:
            (address,) = self._call("cudaMalloc", max(num_bytes, _ALIGNMENT))
            self._call("cudaMemset", address, 0, max(num_bytes, _ALIGNMENT))
        except EngineError as error:
            raise CapacityError(
                f"{purpose} takes {num_bytes / 1e6:,.0f} MB of device memory, more than can be had "
                f"({error}); lower --capacity, close other programs, or restart a Jetson whose "
                "memory is in pieces"
            ) from error
        return int(address)

    def allocate_host(self, num_bytes: int) -> int:
        """Address of pinned host memory."""
        (address,) = self._call("cudaMallocHost", max(num_bytes, _ALIGNMENT))
        return int(address)

    def upload(self, device: int, host: int, num_bytes: int) -> None:
        """Queue a copy to the device."""
        kind = self._kinds.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", device, host, num_bytes, kind, self.stream)

    def download(self, host: int, device: int, num_bytes: int) -> None:
        """Queue a copy to the host."""
        kind = self._kinds.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", host, device, num_bytes, kind, self.stream)

    def copy_rows(
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        num_bytes: int,
        count: int,
    ) -> None:
        """Queue ``count`` copies of ``num_bytes`` within the device, each a pitch further."""
        kind = self._kinds.cudaMemcpyDeviceToDevice
        self._call(
            "cudaMemcpy2DAsync",
            *(target, target_pitch, source, source_pitch, num_bytes, count, kind, self.stream),
        )

    def synchronise(self) -> None:
        """Wait for everything queued."""
        self._call("cudaStreamSynchronize", self.stream)

    def capture(self, work: Callable[[], None]) -> Callable[[], None] | None:
        """Record what ``work`` queues as a CUDA graph.

        Returns:
            A function that queues it all at once; None if it can't be recorded.
        """
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        try:
            self._call("cudaStreamBeginCapture", self.stream, mode)
            try:
                work()
            finally:
                (graph,) = self._call("cudaStreamEndCapture", self.stream)
            (ready,) = self._call("cudaGraphInstantiate", graph, 0)
        except EngineError:
            self._forget_error()
            return None
        return lambda: self._launch(ready)

    def _launch(self, graph: Any) -> None:
        self._call("cudaGraphLaunch", graph, self.stream)

    def _forget_error(self) -> None:
        """A failed capture must not be found by the next call."""
        with contextlib.suppress(EngineError):
            self._call("cudaGetLastError")

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        status, *results = getattr(self._api, name)(*arguments)
        if int(status) != 0:
            raise EngineError(f"{name} failed: {self._describe(status)}")
        return tuple(results)

    def _describe(self, status: Any) -> str:
        with contextlib.suppress(Exception):
            text = self._api.cudaGetErrorString(status)[1]
            return f"{text.decode()} (CUDA error {int(status)})"
        return f"CUDA error {int(status)}"


def _import_api() -> Any:
    for name in _api_names():
        with contextlib.suppress(ImportError):
            return __import__(name, fromlist=["cudaMalloc"])
    raise EngineError(
        "cuda-python is not installed; pip install 'lade-edge[tensorrt]' brings it (on a Jetson: "
        "pip install cuda-python of the board's CUDA version)"
    )


def _api_names() -> Iterator[str]:
    yield "cuda.bindings.runtime"
    yield "cuda.cudart"  # its name before cuda-python 12.6
