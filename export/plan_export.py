"""From a source or a canonical graph to a plan with its fingerprint and tokenizer beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from lade_edge.engines import Bundle, ConfigError, ExportError, describe_file, open_bundle
from lade_edge.engines.cuda_driver import probe_driver
from lade_edge.engines.manifest import FileEntry
from lade_edge.engines.plan import (
    IN_PLACE,
    PLAN_SUFFIX,
    PRECISIONS,
    ROWS,
    PlanBucket,
    PlanProfile,
    PlanRecord,
    fingerprint_path,
    plan_record_text,
)
from lade_edge.engines.plan_check import graph_digest
from lade_edge.engines.tensorrt_library import TensorRTLibrary, import_tensorrt
from lade_edge.export.atomic_folder import partial_folder
from lade_edge.export.build_memory import available_memory, estimate, refuse_too_large
from lade_edge.export.golden import reference_continuation
from lade_edge.export.half_precision import check_range, convert_to_half
from lade_edge.export.lower_qdq import BLOCKS_OPSET, COLUMNS_OPSET
from lade_edge.export.lower_tensorrt import lower_for_tensorrt
from lade_edge.export.plan_quantization import (
    QUANTIZED,
    QuantizedGraph,
    growth_note,
    quantize_for_plan,
)
from lade_edge.export.tensorrt_build import (
    BuilderOptions,
    PlanBuilder,
    check_options,
    compute_capabilities,
    preferred_forms,
)

DEFAULT_WIDTHS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_WIDTH = 256
_WIDEST = 1024
_BEST_WIDTH = 8  # tokens: what most steps of a lookahead are like
_SLOT_UNIT = 64  # keeps every tensor of the cache on the 256-byte boundary TensorRT asks for

Stage = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What plan to make.

    Attributes:
        precision: ``fp16``; ``int8`` or ``int4`` for the weights alone; ``fp32`` for comparisons.
        calibrate: Text that the model reads before ``int4`` rounds; None takes the exporter's own.
        allow_quality_loss: Keep integers whatever they cost.
        capacity: Tokens of prompt and output together; None takes the graph's default.
        widths: Widths at which steps run, in tokens; others are padded to the next.
        prefill: Tokens of a prompt's chunk.
        profile_per_width: Kernels of their own for each width, in place of one set for all. It
            doubles a TensorRT-RTX plan.
        form: ``in_place`` or ``rows``; None takes the first that the library accepts.
        builder: What to ask of the builder.
        flavour: ``tensorrt`` or ``tensorrt_rtx``; None takes whichever is installed.
        overwrite: Replace an existing plan.
        force: Build even if memory looks too small.

    Raises:
        ConfigError: If an option can't be used.
    """

    precision: str = "fp16"
    calibrate: Path | None = None
    allow_quality_loss: bool = False
    capacity: int | None = None
    widths: tuple[int, ...] = DEFAULT_WIDTHS
    prefill: int = PREFILL_WIDTH
    profile_per_width: bool = False
    form: str | None = None
    builder: BuilderOptions = field(default_factory=BuilderOptions)
    flavour: str | None = None
    overwrite: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ConfigError(
                f"--precision {self.precision} is unknown; choose {', '.join(PRECISIONS)}"
            )
        if self.calibrate is not None and self.precision != "int4":
            raise ConfigError(
                f"--calibrate is for --precision int4: {self.precision} of a plan needs no text; drop it"
            )
        if self.calibrate is not None and not os.path.isfile(self.calibrate):
            raise ConfigError(f"--calibrate {self.calibrate} is no file; expected a text")
        if self.capacity is not None and self.capacity < 1:
            raise ConfigError(f"--capacity is {self.capacity}, expected at least 1")
        if not self.widths or not all(1 <= width <= _WIDEST for width in self.widths):
            widths = ",".join(map(str, self.widths)) or "none"
            raise ConfigError(f"--widths {widths} is outside 1..{_WIDEST}; name some inside")
        if self.form not in (None, IN_PLACE, ROWS):
            raise ConfigError(f"form {self.form} is unknown; choose {IN_PLACE} or {ROWS}")

    def buckets(self, slots: int) -> tuple[PlanBucket, ...]:
        """Shapes of the steps, narrowest first, and that of a prompt's chunk, within the cache."""
        widths = sorted(set(self.widths))
        steps = [PlanBucket(width=width, rows=width) for width in widths]
        if self.prefill > widths[-1]:
            steps.append(PlanBucket(width=self.prefill, rows=1))
        return tuple(step for step in steps if step.width <= slots)

    def profiles(self, buckets: Sequence[PlanBucket]) -> tuple[PlanProfile, ...]:
        """Profiles that take these shapes."""
        if self.profile_per_width:
            return tuple(PlanProfile(widths=(b.width,) * 3, rows=(b.rows,) * 3) for b in buckets)
        widest, most = max(b.width for b in buckets), max(b.rows for b in buckets)
        best = min(_BEST_WIDTH, most)
        return (PlanProfile(widths=(1, best, widest), rows=(1, best, most)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What a build made.

    Attributes:
        plan: The plan.
        record: Its fingerprint.
        layers: Layers of the parsed network by type.
        memory: The estimate, in words.
        notes: What the user should know, a sentence each.
    """

    plan: Path
    record: PlanRecord
    layers: dict[str, int]
    memory: str
    notes: tuple[str, ...] = ()


def default_plan(source: str) -> Path:
    """Where a plan goes that the user names no place for.

    Beside its graph, with the bundle's name; a traced one in a folder of its own, since tokenizer and
    config come along.
    """
    path = Path(source)
    if path.suffix == ".onnx":
        name = path.resolve().parent.name if path.name == "model.onnx" else path.stem
        return path.parent / f"{name}{PLAN_SUFFIX}"
    name = path.stem if path.suffix.lower() == ".gguf" else path.resolve().name
    return Path(name) / f"{name}{PLAN_SUFFIX}"


def export_plan(
    source: str,
    out: Path | None = None,
    options: PlanOptions | None = None,
    stage: Stage = lambda name, done, total: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> PlanReport:
    """Build a plan; it appears only when it is complete, and its fingerprint after it.

    Args:
        source: A bundle's canonical ``model.onnx``, for which no torch is needed, or whatever
            `pipeline.export_model` takes.
        out: The plan, ``NAME.plan``; None puts it beside the graph.
        options: What to make.
        stage: Told the name of each stage or of the builder's phases, steps done and steps in all.
        say: Told the estimate of memory before the build.

    Raises:
        LadeError: In one sentence why nothing was made.
    """
    options = options or PlanOptions()
    out = default_plan(source) if out is None else out
    library = _library(options)
    _refuse_taken(out, overwrite=options.overwrite)
    with partial_folder(out) as work:
        bundle = _canonical(source, work, options, stage)
        _refuse_another_model(bundle, out)
        return _build(bundle, source, out, work, library, options, stage, say)


def _library(options: PlanOptions) -> TensorRTLibrary:
    wanted = ("tensorrt_rtx",) if options.builder.devices else ("tensorrt", "tensorrt_rtx")
    library = import_tensorrt(*((options.flavour,) if options.flavour else wanted))
    check_options(library, options.builder)
    _forms(library, options)
    if not library.is_rtx:
        driver = probe_driver()
        if not driver.devices:
            raise ExportError(
                f"{library.title} builds on the device the plan is for and {driver.reason}; run this "
                "there, or install tensorrt-rtx for RTX devices"
            )
    return library


def _canonical(source: str, work: Path, options: PlanOptions, stage: Stage) -> Bundle:
    """The canonical graph in float32, traced if need be."""
    if Path(source).suffix == ".onnx":
        bundle = open_bundle(source)
        if bundle.graph.form != "canonical" or bundle.graph.precision != "fp32":
            raise ExportError(
                f"{source} is a {bundle.graph.form} graph in {bundle.graph.precision}; a plan is "
                "built from a canonical one in fp32 (model.onnx): export with --target canonical"
            )
        return bundle
    from lade_edge.export.options import ExportOptions
    from lade_edge.export.pipeline import export_model

    made = export_model(
        source,
        work / "canonical",
        ExportOptions(target="canonical", capacity=options.capacity),
        lambda name: stage(name, 0, 1),
    )
    return open_bundle(made.folder, verify=False)


def _build(
    bundle: Bundle,
    source: str,
    out: Path,
    work: Path,
    library: TensorRTLibrary,
    options: PlanOptions,
    stage: Stage,
    say: Callable[[str], None],
) -> PlanReport:
    spec = bundle.manifest.model
    capacity = options.capacity or bundle.manifest.capacity
    if capacity > spec.max_position:
        raise ConfigError(
            f"--capacity {capacity} exceeds the {spec.max_position} positions this model was made "
            "for; choose a lower one"
        )
    slots = -(-(capacity + max(options.widths)) // _SLOT_UNIT) * _SLOT_UNIT
    buckets = options.buckets(slots)
    profiles = options.profiles(buckets)
    notes: list[str] = []
    quantized = None
    if options.precision in QUANTIZED:
        stage("quantize", 0, 1)
        quantized = _quantize(bundle, work, options)
        notes += quantized.notes
    to_lower = bundle if quantized is None else quantized.bundle
    stage("reference", 0, 1)
    self_test = reference_continuation(to_lower, bundle.folder / "tokenizer.json", notes)
    stage("lower", 0, 1)
    builder, form, weights = _parse(to_lower, work, library, options, slots, notes, out.name)
    element = 4 if options.precision == "fp32" else 2
    halves = 0 if quantized is None else bundle.weight_bytes // 2
    memory = estimate(
        weights, spec, slots, element, options.builder.workspace_mb, len(profiles), halves
    )
    say(memory.sentence())
    if not options.force:
        refuse_too_large(memory, available_memory())
    built = builder.build(profiles, options.builder, stage)
    if quantized is not None and not options.builder.strip_weights:
        notes += growth_note(memoryview(built.content).nbytes, weights, halves)
    stage("write", 0, 1)
    plan = work / out.name
    with plan.open("wb") as stream:
        stream.write(memoryview(built.content))
        stream.flush()
        os.fsync(stream.fileno())
    record = PlanRecord(
        name=bundle.manifest.name,
        lade_version=version("lade-edge"),
        source=bundle.manifest.source,
        flavour=library.flavour,
        version=library.version,
        compute_capabilities=_capabilities(library, options),
        forward_compatible=options.builder.hardware_compatible,
        version_compatible=options.builder.version_compatible,
        form=form,
        precision=options.precision,
        capacity=capacity,
        slots=slots,
        buckets=buckets,
        profiles=profiles,
        onnx=_origin(source, out),
        onnx_sha256=graph_digest(bundle),
        model=spec,
        eos_token_ids=bundle.manifest.eos_token_ids,
        plan=describe_file(plan),
        options=_words(options),
        quality=None if quantized is None else quantized.quality,
        self_test=self_test,
        weights=_kept_weights(plan) if options.builder.strip_weights else None,
    )
    fingerprint_path(plan).write_text(plan_record_text(record), encoding="utf-8")
    _put_in_place(plan, out, bundle, record)
    return PlanReport(
        plan=out,
        record=record,
        layers=dict(built.layers),
        memory=memory.sentence(),
        notes=tuple(notes),
    )


def _parse(
    bundle: Bundle,
    work: Path,
    library: TensorRTLibrary,
    options: PlanOptions,
    slots: int,
    notes: list[str],
    name: str,
) -> tuple[PlanBuilder, str, int]:
    """The first form that the library's parser takes, and the size of its weights.

    The lowered graph is left in ``work`` as ``NAME.plan.onnx``: a stripped plan is refitted from it.
    """
    forms = _forms(library, options)
    for form in forms:
        path = work / f"{name}.onnx"
        weights = _save_lowered(bundle, path, form, options.precision, slots)
        try:
            return PlanBuilder(library, path), form, weights
        except ExportError as error:
            if form == forms[-1]:
                raise
            notes.append(f"the in-place form was not taken ({error}); the rows form is used")
    raise ValueError("no form to try")


def _forms(library: TensorRTLibrary, options: PlanOptions) -> tuple[str, ...]:
    """Forms to try, in order.

    Raises:
        ConfigError: If the precision has none that this library takes.
    """
    forms = (options.form,) if options.form else preferred_forms(library)
    if options.precision != "int4":
        return forms
    if IN_PLACE not in forms:
        raise ConfigError(
            f"--precision int4 is blocks of opset {BLOCKS_OPSET} and the rows form, which is what "
            f"{library.title} takes, has opset {COLUMNS_OPSET}; use int8, or TensorRT 10.15 or later"
        )
    return (IN_PLACE,)


def _quantize(bundle: Bundle, work: Path, options: PlanOptions) -> QuantizedGraph:
    folder = work / "quantized"
    folder.mkdir()
    return quantize_for_plan(
        bundle,
        folder,
        options.precision,
        options.calibrate,
        allow_loss=options.allow_quality_loss,
    )


def _save_lowered(bundle: Bundle, path: Path, form: str, precision: str, slots: int) -> int:
    """Write the lowered graph; returns the bytes of its weights."""
    model = ir.load(bundle.graph_path)
    if precision != "fp32":
        check_range(model.graph)
        convert_to_half(model.graph)
    lower_for_tensorrt(model, form=form, slots=slots)
    data = f"{path.name}.data"
    ir.save(model, path, external_data=data, size_threshold_bytes=256)
    return path.with_name(data).stat().st_size


def _capabilities(library: TensorRTLibrary, options: PlanOptions) -> tuple[str, ...]:
    if library.is_rtx:
        return compute_capabilities(library, options.builder.devices)
    return (probe_driver().devices[0].compute_capability,)


def _words(options: PlanOptions) -> tuple[str, ...]:
    """Options as a rebuild needs them, but those that always go along."""
    words = ["--precision", options.precision] if options.precision != "fp16" else []
    words += ["--calibrate", str(options.calibrate)] if options.calibrate else []
    words += ["--allow-quality-loss"] if options.allow_quality_loss else []
    if options.widths != DEFAULT_WIDTHS:
        words += ["--widths", ",".join(map(str, options.widths))]
    words += ["--profile-per-width"] if options.profile_per_width else []
    return (*words, *options.builder.words)


def _origin(source: str, out: Path) -> str:
    """The graph relative to the plan if it lies beside or below it, else as it was named."""
    path = Path(source)
    if path.suffix != ".onnx":
        return str(path.resolve()) if path.exists() else source
    folder = out.resolve().parent
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(folder))
    return str(path.resolve())


def _refuse_taken(out: Path, *, overwrite: bool) -> None:
    if out.is_dir():
        raise ConfigError(f"{out} is a folder; name the plan, for example -o {out}/model.plan")
    for path in (out, fingerprint_path(out), *(out.with_name(name) for name in _kept_names(out))):
        if path.exists() and not overwrite:
            raise ConfigError(f"{path} exists already; choose another -o or add --overwrite")


def _sidecars(bundle: Bundle) -> list[str]:
    """Tokenizer, templates and configs: what the folder of a plan needs to run it."""
    graphs = {graph.file for graph in bundle.manifest.graphs}
    return [n for n in bundle.manifest.files if n.removesuffix(".data") not in graphs]


def _refuse_another_model(bundle: Bundle, out: Path) -> None:
    """A plan is run with the tokenizer beside it, so that must be the model's own."""
    for name in _sidecars(bundle):
        path = out.parent / name
        if path.is_file() and describe_file(path) != bundle.manifest.files[name]:
            raise ConfigError(
                f"{out.parent} holds another model's {name}; choose a folder of its own for the plan"
            )


def _kept_weights(plan: Path) -> dict[str, FileEntry]:
    """The lowered graph that a stripped plan's weights are put back from, and its data."""
    return {name: describe_file(plan.with_name(name)) for name in _kept_names(plan)}


def _kept_names(plan: Path) -> tuple[str, str]:
    return f"{plan.name}.onnx", f"{plan.name}.onnx.data"


def _put_in_place(plan: Path, out: Path, bundle: Bundle, record: PlanRecord) -> None:
    """Sidecars and stripped weights first, then the plan, then the fingerprint that it needs."""
    for name in _sidecars(bundle):
        target = out.parent / name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = plan.parent / "sidecar"
            shutil.copyfile(bundle.folder / name, part)
            part.replace(target)
    for name in record.weights or ():
        plan.with_name(name).replace(out.with_name(name))
    plan.replace(out)
    fingerprint_path(plan).replace(fingerprint_path(out))
