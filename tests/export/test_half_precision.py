"""fp16: a strongly typed canonical graph, a lowered one that stores halves, and what can't be held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch

from lade_edge.engines import ExportError, open_bundle, open_engine
from lade_edge.export import ExportOptions, export_model
from reference_steps import CHAIN, TREE, difference, engine_logits, expected_logits, random_step
from tiny_models import VOCAB_SIZE, save_model, tiny_config, tiny_model

HALF, SINGLE = ir.DataType.FLOAT16, ir.DataType.FLOAT
HEAVY = ("MatMul", "Gemm", "Attention", "TensorScatter", "RotaryEmbedding")
FAMILIES = ("llama", "phi", "gemma2", "gemma3_text", "cohere", "opt", "qwen3_moe")
TOLERANCE = 2e-2


@pytest.fixture(scope="module")
def halved(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Called with a family, returns it exported in float32 and the folder of its half."""
    done: dict[str, tuple[Any, Path]] = {}

    def halve(family: str) -> tuple[Any, Path]:
        if family not in done:
            tiny = exported(family)
            out = tmp_path_factory.mktemp(family) / "half"
            export_model(str(tiny.folder / "model.onnx"), out, ExportOptions(precision="fp16"))
            done[family] = tiny, out
        return done[family]

    return halve


@pytest.mark.parametrize("file", ["model.onnx", "onnxruntime-fp16.onnx"])
@pytest.mark.parametrize("family", FAMILIES)
def test_close_to_transformers(family: str, file: str, halved: Any) -> None:
    tiny, folder = halved(family)
    engine = open_engine(open_bundle(folder / file), capacity=100, max_width=16, threads=1)
    for parents in (CHAIN, TREE):
        step = random_step(VOCAB_SIZE, 21, parents)
        found = difference(engine_logits(engine, step), expected_logits(tiny.model, step))
        assert 1e-5 < found < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_canonical_is_strongly_typed(family: str, halved: Any) -> None:
    _, folder = halved(family)
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    graph = ir.load(folder / "model.onnx").graph
    for node in graph:
        if node.op_type in HEAVY:
            floats = [v.dtype for v in (*node.inputs, *node.outputs) if v is not None]
            assert SINGLE not in floats, node
        if node.op_type in ("Cos", "Sin", "Softmax", "Tanh"):
            assert node.outputs[0].dtype == SINGLE, node
    types = {value.name: value.dtype for value in (*graph.inputs, *graph.outputs)}
    assert {types[name] for name in types if "cache" in name or "mask" in name} == {HALF}
    assert types["logits"] == types["top_logits"] == SINGLE
    matrices = [v for v in graph.initializers.values() if len(v.shape) > 1]
    assert {value.dtype for value in matrices} == {HALF}


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_stores_halves_and_computes_in_single(family: str, halved: Any) -> None:
    tiny, folder = halved(family)
    graph = ir.load(folder / "onnxruntime-fp16.onnx").graph
    for value in graph.initializers.values():
        if len(value.shape) > 1:
            assert value.dtype == HALF
            assert {node.op_type for node in value.consumers()} == {"Cast"}
    assert {v.dtype for v in graph.inputs if "cache" in v.name} == {SINGLE}
    sizes = [
        path.stat().st_size
        for path in (
            folder / "onnxruntime-fp16.onnx.data",
            tiny.folder / "onnxruntime-fp32.onnx.data",
        )
    ]
    assert sizes[0] < 0.55 * sizes[1] + 4096


def test_manifest_says_half(halved: Any) -> None:
    _, folder = halved("llama")
    graphs = {g.file: g for g in open_bundle(folder).manifest.graphs}
    assert graphs["model.onnx"].float_type == "float16"
    assert graphs["onnxruntime-fp16.onnx"].float_type == "float32"
    assert {graph.precision for graph in graphs.values()} == {"fp16"}


def test_half_is_not_lowered_further(halved: Any, tmp_path: Path) -> None:
    _, folder = halved("llama")
    with pytest.raises(ExportError, match="is a canonical graph in fp16; only a canonical one"):
        export_model(str(folder / "model.onnx"), tmp_path / "out")


def test_bfloat16_weight_beyond_half_is_named(tmp_path: Path) -> None:
    model = tiny_model(tiny_config("llama"))
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] = 70000.0
    source = save_model(model.to(torch.bfloat16), tmp_path / "source")
    options = ExportOptions(precision="fp16", check=False)
    with pytest.raises(
        ExportError,
        match=r"model.layers.1.mlp.down_proj.weight reaches 7.\d+e\+04, float16 ends at 65504",
    ):
        export_model(str(source), tmp_path / "out", options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
