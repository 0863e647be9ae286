"""What an export is asked to make, and what it says when it is done."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines import ConfigError, Manifest

if TYPE_CHECKING:
    from lade_edge.export.quantization import QuantizationReport

TARGETS = ("onnxruntime", "canonical")
QUANTIZED = ("int8", "int4")
PRECISIONS = ("fp32", "fp16", *QUANTIZED)
KV_CACHES = ("fp32", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """What to make of a source.

    Attributes:
        target: ``onnxruntime`` (canonical graph and a lowered one) or ``canonical`` alone.
        precision: ``fp32``, ``fp16``, ``int8`` or ``int4``; the last two quantise the graph that is
            lowered and leave the canonical one in float32.
        calibrate: Text that the model reads while its activations are measured, for ``int8`` and
            ``int4``; None takes the one that comes with the exporter.
        kv_cache: ``fp32``, or ``int8`` beside a quantised ``precision``.
        allow_quality_loss: Keep a quantised graph whatever it lost.
        capacity: Default KV slots of the bundle; None means 4096, or the model's limit if lower.
        slim: Leave the canonical graph out of the bundle.
        overwrite: Replace an existing bundle.
        check: Compare the graphs with their reference before the bundle is kept.

    Raises:
        ConfigError: If the options contradict each other.
    """

    target: str = "onnxruntime"
    precision: str = "fp32"
    calibrate: Path | None = None
    kv_cache: str = "fp32"
    allow_quality_loss: bool = False
    capacity: int | None = None
    slim: bool = False
    overwrite: bool = False
    check: bool = True

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ConfigError(f"--target {self.target} is unknown; choose {' or '.join(TARGETS)}")
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"--precision {self.precision} is unknown; choose {' or '.join(PRECISIONS)}"
            )
        if self.precision in QUANTIZED and self.target != "onnxruntime":
            raise ConfigError(
                f"--precision {self.precision} quantises the graph for onnxruntime, --target "
                f"{self.target} makes none; drop one of them"
            )
        if self.calibrate is not None and self.precision not in QUANTIZED:
            raise ConfigError(
                f"--calibrate is for --precision {' and '.join(QUANTIZED)}, not {self.precision}; "
                "drop it"
            )
        if self.kv_cache not in KV_CACHES:
            raise ConfigError(
                f"--kv-cache {self.kv_cache} is unknown; choose {' or '.join(KV_CACHES)}"
            )
        if self.kv_cache != "fp32" and self.precision not in QUANTIZED:
            raise ConfigError(
                f"--kv-cache {self.kv_cache} is for --precision {' and '.join(QUANTIZED)}, not "
                f"{self.precision}; drop it"
            )
        if self.calibrate is not None and not os.path.isfile(self.calibrate):
            raise ConfigError(f"--calibrate {self.calibrate} is no file; expected a text")
        if self.capacity is not None and self.capacity < 1:
            raise ConfigError(f"--capacity is {self.capacity}, expected at least 1")
        if self.slim and self.target == "canonical":
            raise ConfigError(
                "--slim leaves the canonical graph out and --target canonical makes nothing else; "
                "drop one of them"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport:
    """What an export made.

    Attributes:
        folder: The bundle.
        manifest: Its manifest.
        stages_s: Seconds per stage, in order.
        peak_memory_mb: Largest memory of the process so far, in MB.
        warnings: What the user should know, a sentence each.
        quantized: What became of the layers, where the graph was quantised.
    """

    folder: Path
    manifest: Manifest
    stages_s: dict[str, float] = field(default_factory=dict)
    peak_memory_mb: float = 0.0
    warnings: tuple[str, ...] = ()
    quantized: QuantizationReport | None = None
