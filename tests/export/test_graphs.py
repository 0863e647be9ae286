"""What the graphs are made of: fused operators, merged projections, weights stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from lade_edge.export import ExportOptions, export_model
from tiny_models import FAMILIES, VOCAB_SIZE, save_model, tiny_config, tiny_model

LAYERS = 2
# per family: RMSNormalization, LayerNormalization and RotaryEmbedding of the canonical graph
FUSED = {
    "llama": (5, 0, 4),
    "qwen2": (5, 0, 4),
    "qwen3": (9, 0, 4),
    "mistral": (5, 0, 4),
    "phi": (0, 3, 4),
    "phi3": (5, 0, 4),
    "gemma": (5, 0, 4),
    "gemma2": (9, 0, 4),
    "gemma3_text": (13, 0, 4),
    "smollm3": (5, 0, 2),  # one of its two layers has no positions
    "olmo2": (9, 0, 4),
    "granite": (5, 0, 4),
    "stablelm": (0, 17, 4),  # norms every head by itself
    "gpt2": (0, 5, 0),
    "opt": (0, 5, 0),
    "starcoder2": (0, 5, 4),
    "cohere": (0, 7, 4),
    "exaone4": (9, 0, 2),  # no positions in full attention
    "glm4": (9, 0, 4),
    "gpt_neox": (0, 5, 4),
    "qwen3_moe": (9, 0, 4),
}
ARITHMETIC = {"Pow", "ReduceMean", "Sqrt", "Neg", "Shape", "Sub", "Tanh", "Erf"}


def test_every_family_is_listed() -> None:
    assert FUSED.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_canonical_operators(family: str, exported: Any) -> None:
    found = exported(family).operators("canonical")
    kinds = ("RMSNormalization", "LayerNormalization", "RotaryEmbedding")
    assert tuple(found[kind] for kind in kinds) == FUSED[family]
    assert (found["Attention"], found["TensorScatter"]) == (LAYERS, 2 * LAYERS)
    angles = {"gpt2": 0, "opt": 0, "gemma3_text": 2}.get(family, 1)  # sets of frequencies
    assert (found["Cos"], found["Sin"]) == (angles, angles)
    allowed = {"gemma2": {"Tanh"}}.get(family, set())  # its softcap on logits
    assert not found.keys() & (ARITHMETIC - allowed)
    assert found["Expand"] == (1 if family == "qwen3_moe" else 0)  # a token for each of its experts


@pytest.mark.parametrize("family", FAMILIES)
def test_canonical_graph_is_valid(family: str, exported: Any) -> None:
    path = exported(family).folder / "model.onnx"
    onnx.checker.check_model(str(path), full_check=True)
    graph = ir.load(path).graph
    assert {node.domain for node in graph} == {""}
    assert graph.opset_imports[""] == 24


# products per layer once q/k/v, and what else reads the same input, are one; then the output and
# MLP projections
@pytest.mark.parametrize(
    ("family", "per_layer"),
    [
        ("llama", 4),
        ("qwen2", 4),
        ("qwen3", 4),
        ("phi", 3),
        ("phi3", 4),
        ("gemma3_text", 4),
        ("granite", 4),
        ("gpt2", 4),
        ("starcoder2", 4),
        ("cohere", 3),
        ("gpt_neox", 4),
    ],
)
def test_lowered_projections_are_merged(family: str, per_layer: int, exported: Any) -> None:
    found = exported(family).operators("lowered")
    assert found["MatMul"] + found["Gemm"] + found["FusedMatMul"] == LAYERS * per_layer + 1


@pytest.mark.parametrize("family", FAMILIES)
def test_lowered_operators(family: str, exported: Any) -> None:
    found = exported(family).operators("lowered")
    assert found["GroupQueryAttention"] == LAYERS
    inside = {"llama", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "exaone4", "qwen3_moe"}
    assert found["RotaryEmbedding"] == (0 if family in inside else FUSED[family][2])
    rms = found["SimplifiedLayerNormalization"] + found["SkipSimplifiedLayerNormalization"]
    assert rms == FUSED[family][0]
    assert found["Transpose"] == (8 if family == "stablelm" else 0)
    assert not found.keys() & {"Attention", "TensorScatter", "RMSNormalization"}


def test_biases_are_merged_with_their_projections(exported: Any) -> None:
    """Llama with biases: q/k/v, output, gate/up and down each have one sum."""
    assert exported("llama").operators("lowered")["Add"] == LAYERS * 4


@pytest.mark.parametrize("form", ["canonical", "lowered"])
@pytest.mark.parametrize("family", ["gemma", "gpt2", "qwen2", "cohere"])
def test_tied_embedding_is_stored_once(family: str, form: str, exported: Any) -> None:
    tiny = exported(family)
    count = sum(weight.numel() for weight in tiny.model.parameters())
    path = tiny.bundle(form).graph_path
    again = 4 * VOCAB_SIZE * tiny.model.config.hidden_size
    assert size_of_weights(path) < 4 * count + again // 4


@pytest.mark.parametrize("form", ["canonical", "lowered"])
def test_nothing_of_the_exporting_machine_is_kept(form: str, exported: Any) -> None:
    content = exported("llama").bundle(form).graph_path.read_bytes()
    assert b"site-packages" not in content
    assert b"torch.onnx" not in content
    assert str(Path.cwd()).encode() not in content


def test_weights_keep_their_names(exported: Any) -> None:
    tiny = exported("llama")
    stored = ir.load(tiny.folder / "model.onnx").graph.initializers
    for name, weight in tiny.model.named_parameters():
        assert name in stored, name
        found = stored[name].const_value.numpy()
        matrix = weight.detach().numpy()
        transposed = weight.ndim == 2 and "embed" not in name
        np.testing.assert_array_equal(found, matrix.T if transposed else matrix)


def test_gemma_scales_are_stored_ready(exported: Any) -> None:
    tiny = exported("gemma")
    stored = ir.load(tiny.folder / "model.onnx").graph.initializers
    weight = tiny.model.model.norm.weight.detach().numpy()
    np.testing.assert_array_equal(stored["model.norm.weight"].const_value.numpy(), 1 + weight)


def size_of_weights(path: Path) -> int:
    return path.with_name(f"{path.name}.data").stat().st_size


@pytest.mark.parametrize("form", ["canonical", "lowered"])
@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_and_outputs_are_tensors_of_the_contract(
    family: str, form: str, exported: Any
) -> None:
    """The cache goes in and comes out as one tensor per layer and kind, never as an object."""
    tiny = exported(family)
    graph = ir.load(tiny.bundle(form).graph_path).graph
    spec = tiny.bundle(form).manifest.model
    assert all(isinstance(value.type, ir.TensorType) for value in (*graph.inputs, *graph.outputs))
    caches = {f"{kind}_cache.{layer}" for kind in "kv" for layer in range(LAYERS)}
    found = {value.name: value for value in graph.inputs}
    slots = {"canonical": "S"}.get(form)
    for name in caches:
        assert found[name].dtype == ir.DataType.FLOAT
        shape = [dim if isinstance(dim, int) else str(dim) for dim in found[name].shape]
        assert shape == [1, spec.num_kv_heads, slots or shape[2], spec.head_size]
    outputs = {value.name for value in graph.outputs}
    results = {name.replace("_cache.", "_cache_out.") for name in caches}
    assert outputs == results | {"logits", "top_logits", "top_ids"}
    place = {"write_index"} if form == "canonical" else {"seqlens_k", "total_length"}
    needed = caches | place | {"input_ids", "logit_rows"}
    assert needed <= found.keys()
    assert found.keys() - needed <= {"position_ids", "attn_mask", "attn_mask_window"}


@pytest.mark.parametrize("family", FAMILIES)
def test_masks_come_from_outside(family: str, exported: Any) -> None:
    """Every attention reads a float mask that is an input; the graph makes none of its own."""
    tiny = exported(family)
    graph = ir.load(tiny.folder / "model.onnx").graph
    masks = {"attn_mask", "attn_mask_window"}
    for node in graph:
        if node.op_type == "Attention":
            mask = node.inputs[3]
            assert mask is not None and mask.name in masks and mask.is_graph_input()
            assert mask.dtype == ir.DataType.FLOAT
            causal = node.attributes.get("is_causal")
            assert causal is None or causal.as_int() == 0
    for form in ("canonical", "lowered"):
        assert not tiny.operators(form).keys() & {"Trilu", "GreaterOrEqual", "LessOrEqual", "Less"}


@pytest.mark.parametrize("form", ["canonical", "lowered"])
def test_weights_lie_beside_the_graph(form: str, exported: Any) -> None:
    """Two gigabytes are the most a graph file can hold; weights in it would count."""
    path = exported("llama").bundle(form).graph_path
    stored = ir.load(path).graph.initializers.values()
    large = [value for value in stored if value.const_value.nbytes > 256]
    assert len(large) > 8
    assert {type(value.const_value) for value in large} == {ir.ExternalTensor}
    assert {value.const_value.location for value in large} == {f"{path.name}.data"}


def test_export_never_serialises_a_graph_with_its_weights(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put into a protobuf stays a fraction of the weights, in every stage of an export."""
    largest = 0
    serialise = ir.serde.serialize_model_into

    def weigh(proto: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal largest
        result = serialise(proto, *arguments, **options)
        largest = max(largest, proto.ByteSize())
        return result

    monkeypatch.setattr(ir.serde, "serialize_model_into", weigh)
    source = save_model(
        tiny_model(tiny_config("llama", hidden_size=256, intermediate_size=2048)),
        tmp_path / "source",
    )
    for precision in ("fp32", "int8"):
        options = ExportOptions(precision=precision, check=False, allow_quality_loss=True)
        folder = export_model(str(source), tmp_path / precision, options).folder
        weights = sum(path.stat().st_size for path in folder.glob("*.data"))
        assert 0 < largest < weights / 10
