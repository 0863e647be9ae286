"""Export: from a transformers or GGUF model to a bundle of checked ONNX graphs.

Names load on first use, so that ``lade-export --help`` needs nothing but Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lade_edge.export.options import ExportOptions, ExportReport
    from lade_edge.export.pipeline import export_model

__all__ = ["ExportOptions", "ExportReport", "export_model"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lade_edge.export import pipeline

    return getattr(pipeline, name)
