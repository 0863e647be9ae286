"""Which adapter runs a bundle's graph."""

from __future__ import annotations

from lade_edge.engines.bundle import Bundle
from lade_edge.engines.protocol import Engine


def open_engine(
    bundle: Bundle,
    *,
    capacity: int | None = None,
    max_width: int = 64,
    threads: int | None = None,
) -> Engine:
    """Load the bundle's graph on the engine it was made for.

    Args:
        bundle: From `open_bundle`.
        capacity: Tokens one sequence may hold (prompt + output); None takes the bundle's default.
        max_width: Widest step that will be asked for, in tokens.
        threads: CPU threads; None leaves the choice to the engine. A plan has no use for them.

    Raises:
        LadeError: In one sentence, why it can't run here.
    """
    if bundle.graph.target == "tensorrt":
        from lade_edge.engines.tensorrt_engine import TensorRTEngine

        return TensorRTEngine(bundle, capacity=capacity, max_width=max_width)
    from lade_edge.engines.ort_engine import OnnxRuntimeEngine

    return OnnxRuntimeEngine(bundle, capacity=capacity, max_width=max_width, threads=threads)
