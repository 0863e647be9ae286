"""``lade-export``: turn a model into a bundle that ``lade-run`` decodes with."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import ConfigError, LadeError, ParityError
from lade_edge.export import plan_cli
from lade_edge.export.progress import progress_bar

if TYPE_CHECKING:
    from lade_edge.export.options import ExportReport

_STAGES = ("load", "trace", "fuse", "lower", "quantize", "quality", "save", "check", "write")
_MEANING = {
    "load": "reading the source",
    "trace": "tracing the model",
    "fuse": "fusing norms and rotary embeddings",
    "lower": "lowering for the target",
    "quantize": "calibrating and quantising",
    "quality": "measuring what quantising cost",
    "save": "saving the canonical graph",
    "check": "comparing with the reference",
    "write": "hashing and writing the manifest",
}


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``lade-export``."""
    parser = CommandParser(
        prog="lade-export",
        description="Export a causal language model once into a bundle: ONNX graphs that take "
        "several tokens a step over an in-place KV cache, its tokenizer and a manifest.",
    )
    parser.add_argument(
        "source",
        help="Hugging Face folder, hub id (org/name), .gguf file, or model.onnx of a bundle to "
        "lower further",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT",
        help="bundle folder to make, or NAME.plan for a TensorRT plan (default: the source's name in "
        "the working folder, a plan beside a model.onnx)",
    )  # fmt: skip
    parser.add_argument(
        "--target", choices=("onnxruntime", "canonical", plan_cli.TARGET), default="onnxruntime",
        help="onnxruntime: a graph lowered for its CPU kernels beside the canonical one; "
        "canonical: standard ONNX only; tensorrt: a plan (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=("fp32", "fp16", "int8", "int4"), default="fp32",
        help="fp16 halves the file, for onnxruntime it computes in fp32; int8 and int4 quantise the graph for "
        "onnxruntime, int8 nearly without loss and fastest for several tokens a step, int4 smallest; "
        "from a GGUF file int4 takes its integers as they are; a plan computes in fp16 and its int8 "
        "and int4 hold for weights (default: %(default)s, of a plan fp16)",
    )  # fmt: skip
    parser.add_argument(
        "--calibrate", type=Path, metavar="FILE",
        help="text to calibrate int8 and int4 with, some thousand tokens of what the model will read "
        "and write (default: a mixed one of its own)",
    )  # fmt: skip
    parser.add_argument(
        "--kv-cache", choices=("fp32", "int8"), default="fp32",
        help="type of the KV cache beside --precision int8 or int4: int8 takes a quarter of the memory and "
        "makes narrow steps faster behind thousands of tokens, needs onnxruntime 1.27 (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--allow-quality-loss", action="store_true",
        help="keep a quantised graph even if its perplexity is over 1.1 times that of fp32",
    )  # fmt: skip
    parser.add_argument(
        "--capacity", type=int, metavar="N",
        help="default KV slots, for prompt and output together (default: 4096, or the model's "
        "limit if lower)",
    )  # fmt: skip
    parser.add_argument(
        "--slim", action="store_true", help="leave the canonical graph out of the bundle"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an existing bundle")
    parser.add_argument(
        "--no-check", dest="check", action="store_false",
        help="skip the comparison with the reference model",
    )  # fmt: skip
    plan_cli.add_options(parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run ``lade-export``; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    words = sys.argv[1:] if argv is None else argv
    given = {word.partition("=")[0] for word in words}
    return run_command("lade-export", lambda: _run(arguments, given))


def _run(arguments: argparse.Namespace, given: set[str]) -> None:
    if not arguments.source:
        raise ConfigError(
            "the source is empty; expected a folder, a hub id, a .gguf or a model.onnx"
        )
    if plan_cli.wants_plan(arguments, given):
        plan_cli.make_plan(arguments, given)
    else:
        _print_report(_export(arguments))


def _export(arguments: argparse.Namespace) -> ExportReport:
    try:
        from lade_edge.export.options import ExportOptions
        from lade_edge.export.pipeline import export_model
    except ImportError as error:
        raise LadeError(
            f"{error.name or error} is not installed; pip install 'lade-edge[export,cpu]' brings "
            "what exporting needs"
        ) from error
    options = ExportOptions(
        target=arguments.target,
        precision=arguments.precision,
        calibrate=arguments.calibrate,
        kv_cache=arguments.kv_cache,
        allow_quality_loss=arguments.allow_quality_loss,
        capacity=arguments.capacity,
        slim=arguments.slim,
        overwrite=arguments.overwrite,
        check=arguments.check,
    )
    try:
        with _stages() as advance:
            return export_model(arguments.source, arguments.output, options, advance)
    except ParityError as error:
        raise ParityError(f"{error}; the export was not kept (--no-check keeps it)") from error


@contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """A bar over the stages on stderr; plain lines where stderr is no terminal."""
    with progress_bar() as bar:
        if bar is None:
            yield lambda stage: print(
                f"lade-export: {_MEANING[stage]}", file=sys.stderr, flush=True
            )
            return
        task = bar.add_task("starting", total=len(_STAGES))
        yield lambda stage: bar.update(
            task, completed=_STAGES.index(stage), description=_MEANING[stage]
        )


def _print_report(report: ExportReport) -> None:
    manifest = report.manifest
    model = manifest.model
    cache_dtype = manifest.graphs[0].cache_dtype
    slot_bytes = 2 * model.num_layers * model.num_kv_heads * model.head_size * cache_dtype.itemsize
    print(f"{report.folder}: {model.architecture}, {model.num_layers} layers")
    for graph in manifest.graphs:
        names = (graph.file, f"{graph.file}.data")
        size_mb = sum(manifest.files[n].size_bytes for n in names if n in manifest.files) / 1e6
        found = manifest.parity.get(graph.file)
        parity = (
            "parity " + ", ".join(f"{step} {error:.1e}" for step, error in found.items())
            if found
            else "parity not checked"
        )
        print(f"  {graph.file}  {graph.precision}  {size_mb:,.0f} MB  {parity}")
    if manifest.quality is not None:
        print(f"  {_quality_line(report)}")
    print(
        f"  KV cache {manifest.capacity} slots, {manifest.capacity * slot_bytes / 1e6:,.0f} MB "
        f"in {cache_dtype}; end ids " + (", ".join(map(str, manifest.eos_token_ids)) or "none")
    )
    total = sum(report.stages_s.values())
    stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.stages_s.items())
    print(f"  {total:.0f} s ({stages}); peak memory {report.peak_memory_mb:,.0f} MB")
    for warning in report.warnings:
        print(f"lade-export: warning: {warning}", file=sys.stderr)


def _quality_line(report: ExportReport) -> str:
    quality, done = report.manifest.quality, report.quantized
    assert quality is not None
    line = (
        f"quality against fp32: perplexity ratio {quality.perplexity_ratio:.4f}, same best token "
        f"{quality.top1_agreement:.1%}, over {quality.tokens} tokens"
    )
    if done is not None and done.kept:
        line += f"; {done.kept} of {done.layers} layers hold the source's own integers"
    return line


if __name__ == "__main__":
    raise SystemExit(main())
