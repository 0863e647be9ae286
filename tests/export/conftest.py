"""Tiny models of every family, each exported once per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from lade_edge.engines import Bundle, open_bundle, open_engine
from lade_edge.engines.protocol import Engine
from lade_edge.export import export_model
from tiny_models import save_model, tiny_config, tiny_model

GRAPHS = {"canonical": "model.onnx", "lowered": "onnxruntime-fp32.onnx"}


@dataclass(frozen=True, slots=True)
class Exported:
    """A tiny model and its bundle.

    Attributes:
        model: The source, as transformers runs it.
        source: Its folder.
        folder: The bundle.
    """

    model: Any
    source: Path
    folder: Path

    def bundle(self, form: str) -> Bundle:
        return open_bundle(self.folder / GRAPHS[form], verify=False)

    def engine(self, form: str, max_width: int = 16) -> Engine:
        return open_engine(self.bundle(form), capacity=100, max_width=max_width, threads=1)

    def operators(self, form: str) -> Counter[str]:
        return Counter(node.op_type for node in ir.load(self.folder / GRAPHS[form]).graph)


Exporter = Callable[..., Exported]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    """Called with a family, and changes to its config, returns the model exported."""
    done: dict[str, Exported] = {}

    def export(family: str, **changes: Any) -> Exported:
        key = repr((family, sorted(changes.items())))
        if key not in done:
            root = tmp_path_factory.mktemp(family)
            model = tiny_model(tiny_config(family, **changes))
            source = save_model(model, root / "source")
            folder = export_model(str(source), root / "bundle").folder
            done[key] = Exported(model=model, source=source, folder=folder)
        return done[key]

    return export
