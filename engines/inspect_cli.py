"""``lade-inspect``: what a bundle, a graph or a plan holds, without loading it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lade_edge.engines.bundle import open_bundle
from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import EngineError, LadeError, ManifestError
from lade_edge.engines.manifest import MANIFEST_NAME, GraphEntry, Manifest, read_manifest
from lade_edge.engines.plan import PLAN_SUFFIX, PlanRecord, fingerprint_path, read_plan_record

PROGRAM = "lade-inspect"


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``lade-inspect``."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Show what a bundle folder, an ONNX graph or a TensorRT plan holds.",
    )
    parser.add_argument("path", type=Path, help="bundle folder, .onnx file or .plan file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--no-verify", dest="verify", action="store_false", help="don't compare digests of files"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lade-inspect``; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _run(arguments))


def describe(path: Path, *, verify: bool = True) -> dict[str, Any]:
    """What lies at a path, as plain data.

    Args:
        path: Bundle folder, ``.onnx`` or ``.plan`` file.
        verify: Compare the digests of a bundle's files, or of a plan, with what was written down.

    Raises:
        LadeError: If nothing of ours is there or it is damaged.
    """
    if path.suffix == PLAN_SUFFIX and os.path.isfile(path):
        open_bundle(path, verify=verify)
        return _describe_plan(path, read_plan_record(path))
    if os.path.isfile(path) and not (path.parent / MANIFEST_NAME).is_file():
        return {"file": str(path), "tensors": tensors_of(path)}
    bundle = open_bundle(path, verify=verify)
    manifest = read_manifest(bundle.folder)
    found = _describe_bundle(bundle.folder, manifest)
    if path.is_file():
        found["tensors"] = tensors_of(path)
    return found


def tensors_of(path: Path) -> dict[str, dict[str, list[Any]]]:
    """Inputs and outputs of an ONNX file: shapes and element types, caches summed up.

    Raises:
        EngineError: If no library that reads ONNX is installed.
        ManifestError: If it is no ONNX file.
    """
    try:
        import onnx
    except ImportError as error:
        raise EngineError(
            "onnx is not installed, which reads the tensors of a graph; pip install onnx"
        ) from error
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
    except Exception as error:  # protobuf raises its own types
        raise ManifestError(f"{path} is no ONNX file ({type(error).__name__})") from error
    if not graph.node:
        raise ManifestError(f"{path} holds no graph; expected an ONNX file")
    stored = {tensor.name for tensor in graph.initializer}
    found: dict[str, dict[str, list[Any]]] = {}
    for kind, values in (("inputs", graph.input), ("outputs", graph.output)):
        found[kind] = {}
        for value in values:
            if value.name not in stored:
                tensor = value.type.tensor_type
                dims = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
                dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
                found[kind][value.name] = [dtype, dims]
    return found


def _describe_bundle(folder: Path, manifest: Manifest) -> dict[str, Any]:
    plans = [p for p in sorted(folder.glob(f"*{PLAN_SUFFIX}")) if fingerprint_path(p).is_file()]
    return {
        "bundle": str(folder),
        "name": manifest.name,
        "source": manifest.source,
        "lade": manifest.lade_version,
        "model": asdict(manifest.model),
        "capacity": manifest.capacity,
        "kv_bytes_per_token": _bytes_per_token(
            manifest, manifest.graphs[0].cache_dtype.itemsize if manifest.graphs else 4
        ),
        "eos_token_ids": list(manifest.eos_token_ids),
        "graphs": [_describe_graph(manifest, graph) for graph in manifest.graphs],
        "plans": [_describe_plan_or_fault(plan) for plan in plans],
    }


def _describe_plan_or_fault(path: Path) -> dict[str, Any]:
    """One bad plan doesn't hide the bundle it lies in."""
    try:
        return _describe_plan(path, read_plan_record(path))
    except LadeError as error:
        return {"file": str(path), "fault": str(error)}


def _describe_graph(manifest: Manifest, graph: GraphEntry) -> dict[str, Any]:
    names = (graph.file, f"{graph.file}.data")
    size_bytes = sum(manifest.files[n].size_bytes for n in names if n in manifest.files)
    parity = manifest.parity.get(graph.file)
    return {**asdict(graph), "size_bytes": size_bytes, "parity": parity}


def _describe_plan(path: Path, record: PlanRecord) -> dict[str, Any]:
    content = asdict(record)
    element = 2 if record.float_type == "float16" else 4
    content["compute_capabilities"] = content["compute_capabilities"] or "any it supports"
    test = record.self_test
    content["self_test"] = None if test is None else (
        f"{len(test.ids)} tokens, {len(test.clear(record.float_type))} of them clear enough to count"
    )  # fmt: skip
    content["buckets"] = [f"{b.width}x{b.rows}" for b in record.buckets]  # tokens x wanted rows
    content["profiles"] = [
        f"{_range(profile.widths)} tokens, {_range(profile.rows)} wanted rows"
        for profile in record.profiles
    ]
    return {
        "file": str(path),
        **content,
        "kv_bytes": _bytes_per_token(record.manifest(path.name), element) * record.slots,
        "rebuild": record.rebuild_command(path),
    }


def _range(numbers: tuple[int, ...]) -> str:
    """Least, best and most as words."""
    least, best, most = numbers
    return str(most) if least == most else f"{least} to {most} (best {best})"


def _bytes_per_token(manifest: Manifest, element_bytes: int) -> int:
    model = manifest.model
    return 2 * model.num_layers * model.num_kv_heads * model.head_size * element_bytes


def _run(arguments: argparse.Namespace) -> None:
    found = describe(arguments.path, verify=arguments.verify)
    if arguments.json:
        sys.stdout.write(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    else:
        for line in _lines(found):
            sys.stdout.write(f"{line}\n")


def _lines(value: dict[str, Any], indent: str = "") -> list[str]:
    """Nested data as indented lines."""
    lines: list[str] = []
    for name, item in value.items():
        title = f"{indent}{name.replace('_', ' ')}" if indent == "" else f"{indent}{name}"
        if isinstance(item, dict) and item:
            lines += [title, *_lines(item, indent + "  ")]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            for entry in item:
                lines += [title, *_lines(entry, indent + "  ")]
        elif item not in (None, [], (), {}):
            lines.append(f"{title}: {_text(item)}")
    return lines


def _text(item: Any) -> str:
    if isinstance(item, list) and len(item) == 2 and isinstance(item[1], list):
        return f"{item[0]} [{', '.join(map(str, item[1]))}]"
    if isinstance(item, (list, tuple)):
        return ", ".join(map(str, item))
    if isinstance(item, bool):
        return "yes" if item else "no"
    return str(item)


if __name__ == "__main__":
    raise SystemExit(main())
