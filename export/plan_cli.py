"""``lade-export`` where it makes a TensorRT plan: options, progress and report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines.errors import ConfigError, LadeError
from lade_edge.engines.plan import PLAN_SUFFIX
from lade_edge.export.progress import progress_bar

if TYPE_CHECKING:
    from lade_edge.export.plan_export import PlanOptions, PlanReport, Stage

TARGET = "tensorrt"
_OWN = (
    "--widths", "--workspace", "--timing-cache", "--hardware-compatible", "--version-compatible",
    "--strip-weights", "--device", "--force", "--profile-per-width",
)  # fmt: skip
_FOREIGN = ("--slim", "--no-check", "--kv-cache")
_MEANING = {
    "load": "reading the source",
    "trace": "tracing the model",
    "fuse": "fusing norms and rotary embeddings",
    "save": "saving the canonical graph",
    "check": "comparing with the reference",
    "quantize": "quantising the weights and measuring what that costs",
    "reference": "decoding the self-test's reference",
    "lower": "lowering for TensorRT",
    "write": "writing the plan",
}
_BUILD = "building the plan"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of a plan."""
    group = parser.add_argument_group(
        "TensorRT plans", "with -o NAME.plan, --target tensorrt, or a model.onnx and nothing else"
    )
    group.add_argument(
        "--widths", type=_widths, metavar="T,T,...",
        help="widths at which steps run, in tokens (default: 1,2,4,8,16,32,64)",
    )  # fmt: skip
    group.add_argument(
        "--profile-per-width", action="store_true",
        help="kernels of their own for each width; a plan of twice the size with TensorRT-RTX",
    )  # fmt: skip
    group.add_argument(
        "--workspace", type=int, metavar="MB", help="most memory a layer may work in"
    )
    group.add_argument(
        "--timing-cache", type=Path, metavar="FILE", help="keep kernel times for the next build"
    )
    group.add_argument(
        "--hardware-compatible", action="store_true",
        help="one plan for all devices from compute capability 8.0",
    )  # fmt: skip
    group.add_argument(
        "--version-compatible", action="store_true",
        help="a plan that later minor versions of TensorRT run",
    )  # fmt: skip
    group.add_argument(
        "--strip-weights",
        action="store_true",
        help="leave the weights out of the plan; they are put back at load from NAME.plan.onnx",
    )
    group.add_argument(
        "--device", action="append", default=[], metavar="smXX",
        help="target of TensorRT-RTX, e.g. sm86; may be repeated (default: any from sm80)",
    )  # fmt: skip
    group.add_argument("--force", action="store_true", help="build even if memory looks too small")


def wants_plan(arguments: argparse.Namespace, given: Collection[str]) -> bool:
    """Whether a command line asks for a plan.

    Args:
        arguments: The parsed command line.
        given: The options that were given.

    Raises:
        ConfigError: If it asks for a plan and for something else.
    """
    named = arguments.output is not None and arguments.output.suffix == PLAN_SUFFIX
    if "--target" in given and arguments.target != TARGET:
        plan = False
        if named:
            raise ConfigError(
                f"-o {arguments.output} is a TensorRT plan and --target {arguments.target} makes a "
                "bundle folder; drop one of them"
            )
    else:
        plan = named or arguments.target == TARGET or _graph_alone(arguments)
        if plan and arguments.output is not None and not named:
            raise ConfigError(
                f"-o {arguments.output} would be a TensorRT plan, whose name has to end in "
                f"{PLAN_SUFFIX}; add that"
            )
    odd = [option for option in (_FOREIGN if plan else _OWN) if option in given]
    if odd and plan:
        raise ConfigError(f"{odd[0]} has no meaning for a TensorRT plan; drop it")
    if odd:
        raise ConfigError(f"{odd[0]} is for TensorRT plans; name one with -o NAME.plan or drop it")
    return plan


def make_plan(arguments: argparse.Namespace, given: Collection[str]) -> None:
    """Build the plan and report.

    Raises:
        LadeError: In one sentence why there is none.
    """
    try:
        from lade_edge.export.plan_export import export_plan
    except ImportError as error:
        raise LadeError(
            f"{error.name or error} is not installed; pip install onnx onnx-ir brings what building "
            "a plan needs"
        ) from error
    options = _options(arguments, given)
    try:
        with _progress() as stage:
            report = export_plan(arguments.source, arguments.output, options, stage, _say)
    except LadeError as error:
        if "--target" not in given and arguments.output is None and "not installed" in str(error):
            raise LadeError(
                f"{error}; to lower {arguments.source} for ONNX Runtime instead add --target "
                "onnxruntime"
            ) from error
        raise
    _print_report(report)


def _graph_alone(arguments: argparse.Namespace) -> bool:
    return arguments.output is None and Path(arguments.source).suffix == ".onnx"


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers like 1,4,16, not {text!r}") from None


def _options(arguments: argparse.Namespace, given: Collection[str]) -> PlanOptions:
    from lade_edge.export.plan_export import DEFAULT_WIDTHS, PlanOptions
    from lade_edge.export.tensorrt_build import BuilderOptions

    return PlanOptions(
        precision=arguments.precision if "--precision" in given else "fp16",
        capacity=arguments.capacity,
        widths=arguments.widths or DEFAULT_WIDTHS,
        profile_per_width=arguments.profile_per_width,
        calibrate=arguments.calibrate,
        allow_quality_loss=arguments.allow_quality_loss,
        builder=BuilderOptions(
            workspace_mb=arguments.workspace,
            timing_cache=arguments.timing_cache,
            hardware_compatible=arguments.hardware_compatible,
            version_compatible=arguments.version_compatible,
            strip_weights=arguments.strip_weights,
            devices=tuple(arguments.device),
        ),
        overwrite=arguments.overwrite,
        force=arguments.force,
    )


def _say(sentence: str) -> None:
    sys.stderr.write(f"lade-export: {sentence}\n")


@contextmanager
def _progress() -> Iterator[Stage]:
    """A bar on stderr that follows the builder's phases; plain lines where stderr is no terminal."""
    with progress_bar() as bar:
        if bar is None:
            told: list[str] = []

            def tell(name: str, done: int, total: int) -> None:
                sentence = _MEANING.get(name, _BUILD)
                if sentence not in told[-1:]:
                    told.append(sentence)
                    _say(sentence)

            yield tell
            return
        task = bar.add_task("starting", total=None)

        def show(name: str, done: int, total: int) -> None:
            phase = _MEANING.get(name) or f"{_BUILD}: {name.lower()}"
            bar.update(task, completed=done, total=max(total, 1), description=phase)

        yield show


def _print_report(report: PlanReport) -> None:
    record = report.record
    out = sys.stdout.write
    targets = ", ".join(f"sm{c.replace('.', '')}" for c in record.compute_capabilities)
    out(f"{report.plan}: {record.model.architecture}, {record.model.num_layers} layers\n")
    out(
        f"  {record.flavour} {record.version} for {targets or 'any device from sm80'}, "
        f"{record.precision}, {record.plan.size_bytes / 1e6:,.0f} MB\n"
    )
    kept = report.layers.get("KV_CACHE_UPDATE", 0)
    form = f"{kept} cache layers updated in place" if kept else "cache read only, new rows copied"
    out(f"  form {record.form}: {form}\n")
    widths = ", ".join(str(p.width) for p in record.buckets if p.rows == p.width)
    chunks = ", ".join(str(p.width) for p in record.buckets if p.rows != p.width)
    out(f"  steps of {widths} tokens{f', prompts in chunks of {chunks}' if chunks else ''}; ")
    out(f"capacity {record.capacity}\n")
    if record.quality is not None:
        out(
            f"  quality against fp32: perplexity ratio {record.quality.perplexity_ratio:.4f}, same "
            f"best token {record.quality.top1_agreement:.1%}, over {record.quality.tokens} tokens\n"
        )
    for note in report.notes:
        _say(f"note: {note}")
