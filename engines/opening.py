"""Which adapter runs a bundle's graph."""

from __future__ import annotations

from dataclasses import replace

from lade_edge.engines.bundle import Bundle
from lade_edge.engines.errors import ConfigError
from lade_edge.engines.protocol import Engine

DEVICES = ("cpu", "cuda", "tensorrt")


def open_engine(
    bundle: Bundle,
    *,
    capacity: int | None = None,
    max_width: int = 64,
    threads: int | None = None,
    device: str = "cpu",
) -> Engine:
    """Load the bundle's graph on the engine it was made for.

    Args:
        bundle: From `open_bundle`.
        capacity: Tokens one sequence may hold (prompt + output); None takes the bundle's default.
        max_width: Widest step that will be asked for, in tokens.
        threads: CPU threads; None leaves the choice to the engine. A plan has no use for them.

        device: ``cpu``, or ``cuda`` or ``tensorrt`` for ONNX Runtime's providers of that name, which
            take the canonical graph. A plan knows its own.

    Raises:
        LadeError: In one sentence, why it can't run here.
    """
    if bundle.graph.target == "tensorrt":
        from lade_edge.engines.tensorrt_engine import TensorRTEngine

        return TensorRTEngine(bundle, capacity=capacity, max_width=max_width)
    from lade_edge.engines.ort_engine import OnnxRuntimeEngine

    if device not in DEVICES:
        raise ConfigError(f"--device {device} is unknown; choose {', '.join(DEVICES)}")
    if device != "cpu":
        graphs = bundle.manifest.graphs
        canonical = next((graph for graph in graphs if graph.form == "canonical"), bundle.graph)
        bundle = replace(bundle, graph=canonical)
    return OnnxRuntimeEngine(
        bundle, capacity=capacity, max_width=max_width, threads=threads, device=device
    )
