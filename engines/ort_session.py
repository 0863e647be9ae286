"""ONNX Runtime sessions that are what was asked for, or one sentence why not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from lade_edge.engines.errors import EngineError

CPU_PROVIDER = "CPUExecutionProvider"
PROVIDERS = {
    "cpu": (CPU_PROVIDER,),
    "cuda": ("CUDAExecutionProvider",),
    "tensorrt": ("TensorrtExecutionProvider", "CUDAExecutionProvider"),
}
EXACT_WEIGHTS = "session.qdq_matmulnbits_accuracy_level"  # 1: products in float32
_NO_FALLBACK = "session.disable_cpu_ep_fallback"
_WHOLE_SCORES = "ORT_GQA_DISABLE_FLASH_ATTENTION"  # read when a session is made, no option has it


def open_session(
    path: Path,
    *,
    threads: int | None = None,
    device: str = "cpu",
    provider_options: Mapping[str, str] | None = None,
) -> Any:
    """Load a graph on the provider asked for and on no other.

    Args:
        path: Graph file; external data is looked for beside it.
        threads: Threads of one operator; None leaves the choice to the library.
        device: ``cpu``, ``cuda`` or ``tensorrt``, a key of `PROVIDERS`.
        provider_options: Options of the first provider.

    Raises:
        EngineError: If onnxruntime or its provider is missing, it refuses the graph, or it runs it,
            or a part of it, on another provider: the library falls back to the CPU without a word.
    """
    try:
        import onnxruntime as ort
    except ImportError as error:
        extra = "cpu" if device == "cpu" else "gpu"
        raise EngineError(
            f"onnxruntime is not installed; pip install 'lade-edge[{extra}]' brings it"
        ) from error
    wanted = PROVIDERS[device]
    if wanted[0] not in ort.get_available_providers():
        raise EngineError(
            f"this onnxruntime {ort.__version__} has no {wanted[0]}; install onnxruntime-gpu in place "
            "of onnxruntime (never beside it)"
        )
    options = ort.SessionOptions()
    options.log_severity_level = 4  # its errors come back as exceptions, told once
    options.inter_op_num_threads = 1
    # a graph with dequantised weights is a reference: else its activations would be rounded as well
    options.add_session_config_entry(EXACT_WEIGHTS, "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if wanted[0] != CPU_PROVIDER:
        options.add_session_config_entry(_NO_FALLBACK, "1")
    settings = [dict(provider_options or {}), *({} for _ in wanted[1:])]
    try:
        with _whole_scores():
            session = ort.InferenceSession(
                str(path), options, providers=list(wanted), provider_options=settings
            )
    except Exception as error:  # the library raises its own types and bare RuntimeError alike
        raise EngineError(
            f"onnxruntime {ort.__version__} can't load {path}: {first_line(error)}"
        ) from error
    found = session.get_providers()
    if found[0] != wanted[0] or (device == "cpu" and found != [CPU_PROVIDER]):
        advice = "" if device == "cpu" else (
            "; its CUDA, cuDNN or TensorRT libraries are missing or of another version, lade-doctor "
            "shows what is here"
        )  # fmt: skip
        raise EngineError(f"onnxruntime runs {path} on {found}, expected {wanted[0]}{advice}")
    return session


@contextmanager
def _whole_scores() -> Iterator[None]:
    """Have GroupQueryAttention on a CPU keep a step's whole scores rather than go through tiles.

    For the few queries of a step the tiles are slower, their size depends on the machine's caches,
    and libraries before 1.30 don't have them. A choice made in the environment stands.
    """
    if _WHOLE_SCORES in os.environ:
        yield
        return
    os.environ[_WHOLE_SCORES] = "1"
    try:
        yield
    finally:
        os.environ.pop(_WHOLE_SCORES, None)


def keeps_whole_scores() -> bool:
    """Whether sessions made now keep whole scores; the environment can say otherwise."""
    return os.environ.get(_WHOLE_SCORES, "1") != "0"


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
