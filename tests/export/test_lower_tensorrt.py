"""The TensorRT forms of every family against transformers, run on ONNX Runtime through the adapter.

The library is a stand-in that runs the lowered graph, so what is shown is the lowering and the
adapter's masks, slots and copies, not TensorRT.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from lade_edge.engines import ExportError
from lade_edge.export.lower_tensorrt import PARSER_OPERATORS, ROWS_OPSET, lower_for_tensorrt
from plans import lower, make_plan, open_fake
from reference_steps import CHAIN, TREE, difference, engine_logits, expected_logits, random_step
from tiny_models import FAMILIES, VOCAB_SIZE

WINDOWED = ("qwen2", "mistral", "gemma2", "gemma3_text")


def open_lowered(exported: Any, family: str, folder: Path, form: str, precision: str) -> Any:
    plan = make_plan(exported(family).folder / "model.onnx", folder, form, precision)
    return open_fake(plan)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_form_is_exact(family: str, exported: Any, tmp_path: Path) -> None:
    engine = open_lowered(exported, family, tmp_path, "rows", "fp32")
    for parents in (CHAIN, TREE, (-1,)):
        step = random_step(VOCAB_SIZE, 37, parents)
        expected = expected_logits(exported(family).model, step)
        assert difference(engine_logits(engine, step), expected) < 2e-5


@pytest.mark.parametrize("family", ["llama", *WINDOWED])
def test_in_place_form_is_exact(family: str, exported: Any, tmp_path: Path) -> None:
    engine = open_lowered(exported, family, tmp_path, "in_place", "fp32")
    for parents in (CHAIN, TREE):
        step = random_step(VOCAB_SIZE, 37, parents)
        expected = expected_logits(exported(family).model, step)
        assert difference(engine_logits(engine, step), expected) < 2e-5


@pytest.mark.parametrize("family", ["llama", "phi", "gemma2", "cohere", "opt", "qwen3_moe"])
def test_rows_form_in_half(family: str, exported: Any, tmp_path: Path) -> None:
    engine = open_lowered(exported, family, tmp_path, "rows", "fp16")
    step = random_step(VOCAB_SIZE, 21, TREE)
    found = difference(engine_logits(engine, step), expected_logits(exported(family).model, step))
    assert 1e-5 < found < 2e-2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_form_is_made_of_old_operators(
    family: str, precision: str, exported: Any, tmp_path: Path
) -> None:
    source = exported(family).folder / "model.onnx"
    path = lower(source, tmp_path / "rows.onnx", "rows", precision, 64)
    onnx.checker.check_model(str(path), full_check=True)
    model = ir.load(path)
    assert model.graph.opset_imports[""] == ROWS_OPSET
    assert {node.op_type for node in model.graph} <= PARSER_OPERATORS
    shapes = {str(v.name): [str(d) for d in v.shape or ()] for v in model.graph.inputs}
    assert "write_index" not in shapes
    assert shapes["step_mask"] == ["1", "1", "T", "T"] or "attn_mask" not in shapes
    assert shapes["k_cache.0"][2] == "64"
    assert model.graph.outputs[-1].name == "kv_rows"
    if precision == "fp16":
        assert model.graph.outputs[-1].dtype == ir.DataType.FLOAT16


def test_in_place_form_keeps_the_canonical_operators(exported: Any, tmp_path: Path) -> None:
    source = exported("llama").folder / "model.onnx"
    found = Counter(
        n.op_type for n in ir.load(lower(source, tmp_path / "a.onnx", "in_place", "fp16", 64)).graph
    )
    assert (found["Attention"], found["TensorScatter"]) == (2, 4)


def test_an_operator_the_old_parsers_lack_is_named(exported: Any) -> None:
    model = ir.load(exported("llama").folder / "model.onnx")
    node = next(n for n in model.graph if n.op_type == "Sigmoid")
    node.op_type = "Swish"
    with pytest.raises(ExportError, match=r"operator Swish at .* needs TensorRT 10\.15 or later"):
        lower_for_tensorrt(model, form="rows", slots=64)
