"""ONNX Runtime sessions that are what was asked for, or one sentence why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from lade_edge.engines.errors import EngineError

CPU_PROVIDER = "CPUExecutionProvider"


def open_session(path: Path, *, threads: int | None = None) -> Any:
    """Load a graph on the CPU.

    Args:
        path: Graph file; external data is looked for beside it.
        threads: Threads of one operator; None leaves the choice to the library.

    Raises:
        EngineError: If onnxruntime is missing, refuses the graph, or runs it on another provider.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise EngineError(
            "onnxruntime is not installed; pip install 'lade-edge[cpu]' brings it"
        ) from error
    options = ort.SessionOptions()
    options.log_severity_level = 4  # its errors come back as exceptions, told once
    options.inter_op_num_threads = 1
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        session = ort.InferenceSession(str(path), options, providers=[CPU_PROVIDER])
    except Exception as error:  # the library raises its own types and bare RuntimeError alike
        raise EngineError(
            f"onnxruntime {ort.__version__} can't load {path}: {first_line(error)}"
        ) from error
    if session.get_providers() != [CPU_PROVIDER]:
        raise EngineError(
            f"onnxruntime runs {path} on {session.get_providers()}, expected {CPU_PROVIDER}"
        )
    return session


def library_version() -> str:
    """Version of the installed onnxruntime."""
    import onnxruntime as ort

    version: str = ort.__version__
    return version


def value_over(array: npt.NDArray[Any]) -> Any:
    """An ``OrtValue`` over the array's own memory, which has to outlive it.

    Raises:
        EngineError: If the library made a copy, which would never see what is written later.
    """
    import onnxruntime as ort

    value = ort.OrtValue.ortvalue_from_numpy(array)
    if value.data_ptr() != array.ctypes.data:
        raise EngineError(f"onnxruntime {ort.__version__} copies bound arrays; expected views")
    return value


def first_line(error: Exception) -> str:
    """The first line of what a library says, or the name of its error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
