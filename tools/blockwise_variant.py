"""A bundle whose weights are plainly rounded in blocks: what the exporter's forms were chosen against.

    python tools/blockwise_variant.py --bits 8 --block 64 --accuracy 4 FP32_BUNDLE OUT

FP32_BUNDLE needs its ``onnxruntime-fp32.onnx``. Token table and LM head have 8 bits.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from pathlib import Path

import onnx_ir as ir

from lade_edge.engines import describe_file, open_bundle, open_engine, write_manifest
from lade_edge.export import lower_int4
from lade_edge.export.calibration import HELD_APART_TEXT, tokenise
from lade_edge.export.linear_layers import find_linears, find_token_table, stored_array
from lade_edge.export.quality import compare_quality
from lade_edge.export.quantize_weights import round_blocks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--bits", type=int, choices=(4, 8), required=True)
    parser.add_argument("--block", type=int, required=True)
    parser.add_argument("--accuracy", type=int, choices=(0, 1, 4), default=4)
    arguments = parser.parse_args()
    source = open_bundle(arguments.bundle / "onnxruntime-fp32.onnx")
    lower_int4.ACCURACY_LEVEL = arguments.accuracy
    model = ir.load(source.graph_path)
    table = find_token_table(model.graph)
    assert table is not None
    embeddings = round_blocks(stored_array(table.weight), 8, 32)
    layers = []
    for linear in find_linears(model.graph):
        tied = linear.weight is table.weight
        weights = round_blocks(linear.matrix().T, arguments.bits, arguments.block)
        layers.append((linear, embeddings if tied else weights))
    lower_int4.lower_to_blocks(model.graph, layers, (table, embeddings))
    shutil.copytree(
        source.folder, arguments.out, ignore=shutil.ignore_patterns("*.onnx*", "lade.json")
    )
    name = f"onnxruntime-int{arguments.bits}.onnx"
    ir.save(model, arguments.out / name, external_data=f"{name}.data", size_threshold_bytes=256)
    graph = dataclasses.replace(source.graph, file=name, precision=f"int{arguments.bits}")
    files = {path.name: describe_file(path) for path in arguments.out.iterdir()}
    manifest = dataclasses.replace(source.manifest, graphs=(graph,), parity={}, files=files)
    write_manifest(arguments.out, manifest)
    single, rounded = (open_engine(b, capacity=512) for b in (source, open_bundle(arguments.out)))
    texts = tokenise(source.folder / "tokenizer.json", HELD_APART_TEXT, 512)
    quality = compare_quality(single, rounded, texts)
    write_manifest(arguments.out, dataclasses.replace(manifest, quality=quality))
    print(quality)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
