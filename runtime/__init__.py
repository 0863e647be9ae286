"""Lookahead decoding over compiled graphs.

Names are imported when first used, so that a command's help needs neither numpy nor a tokenizer.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lade_edge.runtime.config import GenerationConfig, Shape
    from lade_edge.runtime.generation import Event, Generation, Stream
    from lade_edge.runtime.logprobs import TokenLogprob
    from lade_edge.runtime.model import Model, load
    from lade_edge.runtime.statistics import Statistics

__all__ = [
    "Event",
    "Generation",
    "GenerationConfig",
    "Model",
    "Shape",
    "Statistics",
    "Stream",
    "TokenLogprob",
    "load",
]

_MODULES = {
    "Event": "generation",
    "Generation": "generation",
    "GenerationConfig": "config",
    "Model": "model",
    "Shape": "config",
    "Statistics": "statistics",
    "Stream": "generation",
    "TokenLogprob": "logprobs",
    "load": "model",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
