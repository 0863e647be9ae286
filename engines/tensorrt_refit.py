"""Weights put back into a plan that was built without them, from the lowered graph beside it.

Not run on a GPU so far: the calls exist in TensorRT 10.3, 10.16 and 11.4, and what is done with their
answers is checked on stand-ins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lade_edge.engines.errors import EngineError
from lade_edge.engines.tensorrt_library import TensorRTLibrary, last_error

CLASSES = ("Refitter", "OnnxParserRefitter")


def lacks(library: TensorRTLibrary) -> str:
    """Name of the first class for refitting that a library doesn't have, or nothing."""
    return next((name for name in CLASSES if not hasattr(library.module, name)), "")


def put_weights_back(library: TensorRTLibrary, engine: Any, logger: Any, onnx: Path) -> None:
    """Refit a deserialised engine, in place.

    Args:
        library: The library that deserialised it.
        engine: ``ICudaEngine`` of a stripped plan.
        logger: From `tensorrt_library.make_logger`.
        onnx: The lowered graph the plan was built from, its weights beside it.

    Raises:
        EngineError: If the library can't refit, or the graph isn't the plan's.
    """
    missing = lacks(library)
    if missing:
        raise EngineError(
            f"{library.title} has no {missing}, which puts the weights of a stripped plan back; build "
            "it again here without --strip-weights"
        )
    refitter = library.module.Refitter(engine, logger)
    parser = library.module.OnnxParserRefitter(refitter, logger)
    if not parser.refit_from_file(str(onnx)):
        raise EngineError(
            f"{library.title} can't take the weights of {onnx} ({_reason(parser, logger)}); build "
            "the plan again"
        )
    unset = list(refitter.get_missing_weights())
    if unset:
        raise EngineError(
            f"{onnx} lacks {len(unset)} of the plan's weights, {unset[0]} first; build the plan again"
        )
    if not refitter.refit_cuda_engine():
        raise EngineError(
            f"{library.title} can't put the weights back ({last_error(logger, 'no reason given')}); "
            "build the plan again"
        )


def _reason(parser: Any, logger: Any) -> str:
    if parser.num_errors:
        return " ".join(parser.get_error(0).desc().split()) or "no reason given"
    return last_error(logger, "no reason given")
