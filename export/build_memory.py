"""What a TensorRT build will take in memory, said before it starts and refused where it isn't there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lade_edge.engines import Bundle, ExportError, ModelSpec

# Fitted to TensorRT-RTX 1.7 on a CPU: SmolLM2-135M (269 MB of fp16 weights) peaks at 1,308 MB in the
# in_place form and at 1,507 MB as rows with one profile, at 2,190 MB with eight; a model of a few kB at
# 255 MB; its int8 form, 192 MB of weights, at 1,325 MB or less. Full TensorRT is not measured.
_BASE_BYTES = 260_000_000
_PER_WEIGHT_BYTE = 4.7
_PER_WEIGHT_BYTE_OF_SEVERAL = 7.3
_PER_REFERENCE_BYTE = 2.0  # ONNX Runtime keeps weights a second time, packed


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildMemory:
    """An estimate, in bytes.

    Attributes:
        weights: Of the lowered graph.
        kv_cache: Of all layers, as the plan will run.
        workspace: What the builder was allowed for a layer; 0 where it was left open.
        profiles: Optimisation profiles; several take more than one.
        floats: Bytes of integer weights as float16, in which a builder may hold them; else 0.
    """

    weights: int
    kv_cache: int
    workspace: int
    profiles: int = 1
    floats: int = 0

    @property
    def peak(self) -> int:
        """Host memory while building."""
        factor = _PER_WEIGHT_BYTE if self.profiles == 1 else _PER_WEIGHT_BYTE_OF_SEVERAL
        return _BASE_BYTES + int(factor * max(self.weights, self.floats)) + self.workspace

    def sentence(self) -> str:
        """The estimate for people."""
        parts = [f"weights {_mb(self.weights)}", f"KV cache {_mb(self.kv_cache)}"]
        parts += [f"workspace {_mb(self.workspace)}"] if self.workspace else []
        return f"{', '.join(parts)}; the build takes about {_mb(self.peak)} at its peak"


def estimate(
    weights: int,
    spec: ModelSpec,
    slots: int,
    element_bytes: int,
    workspace_mb: int | None,
    profiles: int = 1,
    floats: int = 0,
) -> BuildMemory:
    """Estimate the memory of a build.

    Args:
        weights: Bytes of the lowered graph's weights.
        spec: Shape of the model.
        slots: ``S``.
        element_bytes: Of the cache: 2 for fp16.
        workspace_mb: Limit given to the builder, or None.
        profiles: How many profiles the plan gets.
        floats: Bytes of integer weights as float16, 0 where none are integers.
    """
    rows = 2 * spec.num_layers * spec.num_kv_heads * slots
    return BuildMemory(
        weights=weights,
        kv_cache=rows * spec.head_size * element_bytes,
        workspace=(workspace_mb or 0) << 20,
        profiles=profiles,
        floats=floats,
    )


def refuse_too_large(memory: BuildMemory, available: int | None) -> None:
    """Refuse a build that would push the machine out of memory.

    Raises:
        ExportError: With what is needed, what is there and what to do.
    """
    if available is not None and memory.peak > available:
        raise ExportError(
            f"the build takes about {_mb(memory.peak)} and {_mb(available)} are available; close "
            "other programs, add swap, or try all the same with --force"
        )


def reference_fits(*bundles: Bundle) -> bool:
    """Whether float32 graphs can be run on the CPU together, as far as the system says."""
    available = available_memory()
    weights = sum(path.stat().st_size for bundle in bundles for path in _files(bundle))
    return available is None or _PER_REFERENCE_BYTE * weights < available


def _files(bundle: Bundle) -> list[Path]:
    path = bundle.graph_path
    return [p for p in (path, path.with_name(f"{path.name}.data")) if p.is_file()]


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """``MemAvailable`` in bytes, None where the system doesn't say."""
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.0f} MB"
