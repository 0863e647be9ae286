"""The export from source to bundle, stage by stage. `export_model` is what the command calls."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from lade_edge.engines import (
    Bundle,
    ConfigError,
    ExportError,
    FileEntry,
    GraphEntry,
    Manifest,
    ModelSpec,
    describe_file,
    open_bundle,
    open_engine,
    write_manifest,
)
from lade_edge.engines.manifest import MANIFEST_NAME
from lade_edge.engines.peak_memory import peak_memory_mb
from lade_edge.export.atomic_folder import atomic_folder, refuse_existing
from lade_edge.export.options import QUANTIZED, ExportOptions, ExportReport

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine
    from lade_edge.export.quantization import QuantizationReport

CANONICAL_FILE = "model.onnx"
DEFAULT_CAPACITY = 4096
_CANONICAL_OPSET = 24
_PARITY_WIDTH = 16
_COMPARED_CAPACITY = 512
_LONG_TEXT = 2048  # tokens of a text that shows what an int8 cache costs

Progress = Callable[[str], None]


class _Stages:
    """Announces stages, keeps their times and what they have to say."""

    def __init__(self, progress: Progress) -> None:
        self.times_s: dict[str, float] = {}
        self.warnings: list[str] = []
        self.quantized: QuantizationReport | None = None
        self._progress = progress
        self._name = ""
        self._since = 0.0

    def begin(self, name: str) -> None:
        self.end()
        self._name, self._since = name, time.perf_counter()
        self._progress(name)

    def end(self) -> None:
        if self._name:
            self.times_s[self._name] = time.perf_counter() - self._since
        self._name = ""


def default_output(source: str, options: ExportOptions) -> Path:
    """Where a bundle goes when the user names no place: the working folder, named after the source."""
    path = Path(source)
    if path.suffix == ".onnx":
        return Path(f"{path.resolve().parent.name}-{options.target}-{options.precision}")
    return Path(path.stem if path.suffix.lower() == ".gguf" else path.resolve().name)


def export_model(
    source: str,
    out: Path | None = None,
    options: ExportOptions | None = None,
    progress: Progress = lambda stage: None,
) -> ExportReport:
    """Export a model into a bundle folder, which appears only when it is complete.

    Args:
        source: A Hugging Face folder, a hub id, a ``.gguf`` file, or a bundle's ``model.onnx``.
        out: The bundle folder; None derives a name from the source, in the working folder.
        options: What to make.
        progress: Told the name of each stage as it begins.

    Raises:
        LadeError: In one sentence why nothing was made.
    """
    options = options or ExportOptions()
    out = out or default_output(source, options)
    refuse_existing(out, overwrite=options.overwrite)
    stages = _Stages(progress)
    build = _from_onnx if Path(source).suffix == ".onnx" else _from_weights
    with atomic_folder(out, overwrite=options.overwrite) as folder:
        manifest = build(source, folder, options, stages)
        stages.begin("write")
        write_manifest(folder, replace(manifest, files=_describe(folder)))
    stages.end()
    return ExportReport(
        folder=out,
        manifest=replace(manifest, files=_describe(out)),
        stages_s=stages.times_s,
        peak_memory_mb=peak_memory_mb() or 0.0,
        warnings=tuple(stages.warnings),
        quantized=stages.quantized,
    )


def _from_weights(source: str, folder: Path, options: ExportOptions, stages: _Stages) -> Manifest:
    stages.begin("load")
    from lade_edge.export.loader import load_source, save_sidecars
    from lade_edge.export.parity import Reference, transformers_reference

    loaded = load_source(source)
    stages.begin("trace")
    from lade_edge.export.canonical import canonicalise
    from lade_edge.export.tracing import model_spec, trace

    spec = model_spec(loaded.model)
    capacity = _capacity(options, spec)
    canonical = trace(loaded.model, spec)
    stages.begin("fuse")
    canonicalise(canonical)
    save_sidecars(loaded, folder)
    manifest = Manifest(
        name=loaded.name,
        lade_version=version("lade-edge"),
        source=loaded.origin,
        model=spec,
        capacity=capacity,
        eos_token_ids=loaded.eos_token_ids,
        graphs=(),
    )

    def reference() -> Reference:
        return transformers_reference(loaded.model, spec)

    gguf_file = Path(source) if Path(source).suffix.lower() == ".gguf" else None
    return _build_graphs(canonical, folder, manifest, options, stages, reference, gguf_file)


def _from_onnx(source: str, folder: Path, options: ExportOptions, stages: _Stages) -> Manifest:
    stages.begin("load")
    from lade_edge.export.parity import Reference, engine_reference

    bundle = open_bundle(source)
    if bundle.graph.form != "canonical" or bundle.graph.precision != "fp32":
        raise ExportError(
            f"{source} is a {bundle.graph.form} graph in {bundle.graph.precision}; only a "
            f"canonical one in fp32 can be lowered further: export with --target canonical"
        )
    graphs = {graph.file for graph in bundle.manifest.graphs}
    for name in bundle.manifest.files:
        if name.removesuffix(".data") not in graphs:
            shutil.copyfile(bundle.folder / name, folder / name)
    manifest = replace(
        bundle.manifest,
        lade_version=version("lade-edge"),
        capacity=_capacity(options, bundle.manifest.model, bundle.manifest.capacity),
        graphs=(),
        parity={},
        files={},
        quality=None,
    )

    def reference() -> Reference:
        return engine_reference(bundle)

    return _build_graphs(ir.load(bundle.graph_path), folder, manifest, options, stages, reference)


def _capacity(options: ExportOptions, spec: ModelSpec, default: int = DEFAULT_CAPACITY) -> int:
    if options.capacity is not None and options.capacity > spec.max_position:
        raise ConfigError(
            f"--capacity {options.capacity} exceeds the {spec.max_position} positions this model "
            "was made for; choose a lower one"
        )
    return options.capacity or min(default, spec.max_position)


def _build_graphs(
    canonical: ir.Model,
    folder: Path,
    manifest: Manifest,
    options: ExportOptions,
    stages: _Stages,
    make_reference: Callable[[], Any],
    gguf_file: Path | None = None,
) -> Manifest:
    """Save the graphs asked for and compare each with the reference."""
    from lade_edge.export import half_precision
    from lade_edge.export.lower_onnxruntime import OPSET, lower_for_onnxruntime

    half = options.precision == "fp16"
    if half:
        half_precision.check_range(canonical.graph)
    graphs: list[GraphEntry] = []
    if options.target == "onnxruntime":
        stages.begin("lower")
        lowered = canonical.clone()
        lower_for_onnxruntime(lowered, manifest.model)
        if half:
            half_precision.store_weights_as_half(lowered.graph)
        graphs.append(_lowered_entry(options.precision, OPSET, options.kv_cache))
        if options.precision in QUANTIZED:
            manifest = _quantize(
                lowered, folder, manifest, options, stages, make_reference, gguf_file
            )
        else:
            _save(lowered, folder / graphs[-1].file)
    if not options.slim:
        stages.begin("save")
        if half:
            half_precision.convert_to_half(canonical.graph)
        graphs.append(
            GraphEntry(
                file=CANONICAL_FILE,
                target="canonical",
                form="canonical",
                precision="fp16" if half else "fp32",
                float_type="float16" if half else "float32",
                opset=_CANONICAL_OPSET,
            )
        )
        _save(canonical, folder / CANONICAL_FILE)
    manifest = replace(manifest, graphs=tuple(graphs))
    if options.check:
        stages.begin("check")
        manifest = replace(manifest, parity=_check(folder, manifest, make_reference()))
    return manifest


def _lowered_entry(precision: str, opset: int, kv_cache: str = "fp32") -> GraphEntry:
    return GraphEntry(
        cache_type=None if kv_cache == "fp32" else kv_cache,
        file=f"onnxruntime-{precision}.onnx",
        target="onnxruntime",
        form="gqa",
        precision=precision,
        float_type="float32",
        opset=opset,
    )


def _quantize(
    lowered: ir.Model,
    folder: Path,
    manifest: Manifest,
    options: ExportOptions,
    stages: _Stages,
    make_reference: Callable[[], Any],
    gguf_file: Path | None,
) -> Manifest:
    """Save the quantised graph and measure what it lost against the float32 one, itself checked."""
    from lade_edge.export.calibration import (
        CALIBRATION_TEXT,
        HELD_APART_TEXT,
        SEQUENCE,
        largest_in_cache,
        tokenise,
    )
    from lade_edge.export.lower_onnxruntime import OPSET
    from lade_edge.export.parity import check_parity
    from lade_edge.export.quality import check_quality, compare_quality
    from lade_edge.export.quantization import quantize
    from lade_edge.export.quantized_cache import store_cache_as_int8

    single = _lowered_entry("fp32", OPSET)
    entry = _lowered_entry(options.precision, OPSET, options.kv_cache)
    tokenizer_file = folder / "tokenizer.json"
    calibration_text = options.calibrate or CALIBRATION_TEXT
    with tempfile.TemporaryDirectory(prefix=".float32-", dir=folder) as work:
        stages.begin("quantize")
        _save(lowered, Path(work) / single.file)
        model, stages.quantized = quantize(
            Path(work) / single.file,
            options.precision,
            manifest.model,
            tokenizer_file,
            calibration_text,
            gguf_file,
        )
        if options.kv_cache == "int8":
            sequences = tokenise(tokenizer_file, calibration_text, manifest.model.max_position)
            _save(model, Path(work) / entry.file)
            store_cache_as_int8(
                model.graph, largest_in_cache(Path(work) / entry.file, manifest.model, sequences)
            )
        _save(model, folder / entry.file)
        stages.begin("quality")
        longest = _LONG_TEXT if options.kv_cache == "int8" else SEQUENCE
        capacity = max(longest, _COMPARED_CAPACITY)
        engines = (
            _open(Path(work), replace(manifest, graphs=(single,)), single, capacity=capacity),
            _open(folder, replace(manifest, graphs=(entry,)), entry, capacity=capacity),
        )
        if options.check:
            check_parity(engines[0], manifest.model, make_reference(), single.precision)
        held_apart = tokenise(
            tokenizer_file, HELD_APART_TEXT, engines[0].spec.capacity, longest=longest
        )
        quality = compare_quality(*engines, held_apart)
    warning = check_quality(
        quality,
        options.precision,
        kv_cache=options.kv_cache,
        allow_loss=options.allow_quality_loss,
    )
    stages.warnings += [warning] if warning else []
    return replace(manifest, quality=quality)


def _open(
    folder: Path, manifest: Manifest, graph: GraphEntry, *, capacity: int = _COMPARED_CAPACITY
) -> Engine:
    """An engine for comparisons, over files that no manifest describes yet."""
    return open_engine(
        Bundle(folder=folder, manifest=manifest, graph=graph),
        capacity=min(capacity, manifest.model.max_position),
        max_width=_PARITY_WIDTH,
    )


def _save(model: ir.Model, path: Path) -> None:
    ir.save(model, path, external_data=f"{path.name}.data", size_threshold_bytes=256)


def _check(folder: Path, manifest: Manifest, reference: Any) -> dict[str, dict[str, float]]:
    from lade_edge.export.parity import check_parity

    found = {}
    for graph in manifest.graphs:
        engine = _open(folder, manifest, graph)
        found[graph.file] = check_parity(engine, manifest.model, reference, graph.precision)
    return found


def _describe(folder: Path) -> dict[str, FileEntry]:
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != MANIFEST_NAME)
    return {str(path.relative_to(folder)): describe_file(path) for path in paths}
