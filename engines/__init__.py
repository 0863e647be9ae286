"""Engines: what runs a graph, and the contract through which the decode loop sees it."""

from __future__ import annotations

from lade_edge.engines.bundle import Bundle, describe_file, open_bundle
from lade_edge.engines.errors import (
    CapacityError,
    ConfigError,
    EngineError,
    ExportError,
    LadeError,
    ManifestError,
    ParityError,
)
from lade_edge.engines.manifest import (
    FileEntry,
    GraphEntry,
    Manifest,
    ModelSpec,
    Quality,
    read_manifest,
    write_manifest,
)
from lade_edge.engines.opening import open_engine
from lade_edge.engines.protocol import WIDEST_STEP, Engine, EngineSpec, StepResult

__all__ = [
    "WIDEST_STEP",
    "Bundle",
    "CapacityError",
    "ConfigError",
    "Engine",
    "EngineError",
    "EngineSpec",
    "ExportError",
    "FileEntry",
    "GraphEntry",
    "LadeError",
    "Manifest",
    "ManifestError",
    "ModelSpec",
    "ParityError",
    "Quality",
    "StepResult",
    "describe_file",
    "open_bundle",
    "open_engine",
    "read_manifest",
    "write_manifest",
]
