"""int8 and int4 plans: the QDQ form in ONNX Runtime, and what TensorRT-RTX makes of it on a CPU.

The adapter's library is a stand-in that runs the lowered graph; the builds are real.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from fake_tensorrt import ONE_DEVICE, FakeCudaApi, fake_library
from lade_edge.engines import ConfigError, ExportError, open_bundle, open_engine
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.plan import read_plan_record
from lade_edge.engines.tensorrt_engine import TensorRTEngine
from lade_edge.engines.tensorrt_library import TensorRTLibrary
from lade_edge.export.linear_layers import find_linears
from lade_edge.export.lower_qdq import COLUMNS_OPSET, lower_to_qdq, round_columns
from lade_edge.export.lower_tensorrt import PARSER_OPERATORS, lower_for_tensorrt
from lade_edge.export.plan_export import PlanOptions, _forms
from lade_edge.export.plan_quantization import QuantizedGraph, growth_note, quantize_for_plan
from lade_edge.export.quantize_weights import quantize_blocks
from plans import make_plan
from reference_steps import CHAIN, TREE, difference, engine_logits, random_step
from test_tensorrt_rtx import build
from tiny_models import VOCAB_SIZE

WIDE = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}  # whole blocks of 64
# of the logits' size, root mean square: random models amplify every difference
BOUNDS = {"int8": 0.05, "int4": 0.7}
FORMS = [("int8", "in_place"), ("int8", "rows"), ("int4", "in_place")]


@pytest.fixture(scope="module")
def quantized(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Called with a family and a precision, returns the canonical graph and its QDQ form."""
    done: dict[tuple[str, str], tuple[Any, QuantizedGraph]] = {}
    text = tmp_path_factory.mktemp("text") / "words.txt"
    words = np.random.default_rng(5).integers(3, VOCAB_SIZE, 1500)
    text.write_text(" ".join(f"w{word}" for word in words))

    def quantize(family: str, precision: str) -> tuple[Any, QuantizedGraph]:
        if (family, precision) not in done:
            tiny = exported(family, **WIDE)
            folder = tmp_path_factory.mktemp(family)
            calibrate = text if precision == "int4" else None
            made = quantize_for_plan(
                tiny.bundle("canonical"), folder, precision, calibrate, allow_loss=True
            )
            done[family, precision] = tiny, made
        return done[family, precision]

    return quantize


def engine_of(made: QuantizedGraph) -> Any:
    return open_engine(made.bundle, capacity=100, max_width=16, threads=1)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_close_to_the_canonical_graph(family: str, precision: str, quantized: Any) -> None:
    tiny, made = quantized(family, precision)
    for parents in ((-1,), CHAIN, TREE):
        step = random_step(VOCAB_SIZE, 37, parents)
        expected = engine_logits(tiny.engine("canonical"), step)
        error = engine_logits(engine_of(made), step) - expected
        found = np.sqrt(np.square(error).mean() / np.square(expected).mean())
        assert 1e-5 < found < BOUNDS[precision]
    assert made.quality.tokens > 100
    assert made.layers == 15  # 7 a layer and the LM head
    assert made.blocks == (14 if precision == "int4" else 0)


@pytest.mark.parametrize(("precision", "form"), FORMS)
@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("arithmetic", ["fp32", "fp16"])
def test_both_forms_say_what_the_quantised_graph_says(
    family: str, precision: str, form: str, arithmetic: str, quantized: Any, tmp_path: Path
) -> None:
    """Prefill, chains and trees through the adapter, in float32 and in the plan's own float16."""
    made = quantized(family, precision)[1]
    plan = make_plan(made.bundle, tmp_path / "plan", form, arithmetic)
    api = FakeCudaApi()
    engine = TensorRTEngine(
        open_bundle(plan),
        library=fake_library(api),
        driver=lambda: ONE_DEVICE,
        cuda=lambda: CudaRuntime(api),
    )
    for parents in (CHAIN, TREE, (-1,)):
        step = random_step(VOCAB_SIZE, 37, parents)
        found = difference(engine_logits(engine, step), engine_logits(engine_of(made), step))
        assert found < (2e-5 if arithmetic == "fp32" else 5e-2)


def test_integers_and_scales_are_what_tensorrt_takes(quantized: Any) -> None:
    """Symmetric, no zero points, scales above 0 that float16 holds, two integers in a byte."""
    graph = ir.load(quantized("llama", "int4")[1].bundle.graph_path).graph
    nodes = [node for node in graph if node.op_type == "DequantizeLinear"]
    kinds = Counter(n.inputs[0].dtype for n in nodes if n.inputs[0] is not None)
    assert kinds == {ir.DataType.INT4: 14, ir.DataType.INT8: 1}
    for node in nodes:
        assert len(node.inputs) == 2
        integers, scales = (value.const_value for value in node.inputs if value is not None)
        assert integers is not None and scales is not None
        content = scales.numpy()
        assert content.min() > 0
        np.testing.assert_array_equal(content.astype(np.float16), content)
        half = 128 if integers.dtype == ir.DataType.INT8 else 8
        values = integers.numpy().astype(np.int32)
        assert -half <= values.min() < values.max() < half
        if half == 8:
            assert integers.nbytes == integers.size // 2


def test_a_tied_table_stays_and_the_head_is_stored_apart(quantized: Any) -> None:
    graph = ir.load(quantized("gemma2", "int8")[1].bundle.graph_path).graph
    kinds = Counter(v.dtype for v in graph.initializers.values() if len(v.shape or ()) == 2)
    assert kinds == {ir.DataType.FLOAT: 1, ir.DataType.INT8: 15}


def test_columns_too_small_for_half_precision() -> None:
    matrix = np.full((4, 3), 1e-9, np.float32)
    matrix[:, 1], matrix[:, 2] = 0, 3e-5
    found = round_columns(matrix)
    assert found.scales.min() > 0
    assert found.integers[0].tolist()[:2] == [0, 0]
    np.testing.assert_allclose(found.integers * found.scales, matrix, atol=1.2e-7)


def test_symmetric_blocks_change_products_least() -> None:
    rng = np.random.default_rng(2)
    matrix = rng.normal(size=(24, 128)).astype(np.float32)
    rows = rng.normal(size=(500, 128)) @ rng.normal(size=(128, 128)) * rng.gamma(1, 1, 128)
    rows = rows.astype(np.float32)
    moments = rows.T @ rows / len(rows)
    found = quantize_blocks(matrix, moments, 4, 64, symmetric=True)
    plain = quantize_blocks(matrix, np.eye(128, dtype=np.float32), 4, 64, symmetric=True)
    assert found.offsets is None
    errors = [np.square(rows @ (w.dequantized() - matrix).T).mean() for w in (found, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_the_rows_form_of_integers_is_made_of_old_operators(exported: Any, tmp_path: Path) -> None:
    model = ir.load(exported("llama", **WIDE).folder / "model.onnx")
    lower_to_qdq(model.graph, [(n, round_columns(n.matrix())) for n in find_linears(model.graph)])
    lower_for_tensorrt(model, form="rows", slots=64)
    ir.save(model, tmp_path / "rows.onnx", external_data="rows.onnx.data")
    onnx.checker.check_model(str(tmp_path / "rows.onnx"), full_check=True)
    assert model.graph.opset_imports[""] == COLUMNS_OPSET == 19
    assert {node.op_type for node in model.graph} <= PARSER_OPERATORS


def test_what_has_no_form_is_refused(exported: Any, tmp_path: Path) -> None:
    old = TensorRTLibrary(SimpleNamespace(INetworkDefinition=object()), "tensorrt", "10.3.0")
    with pytest.raises(ConfigError, match=r"int4 is blocks of opset 21 .* TensorRT 10\.3\.0 takes"):
        _forms(old, PlanOptions(precision="int4"))
    assert _forms(old, PlanOptions(precision="int8")) == ("rows",)
    with pytest.raises(ConfigError, match="--precision int3 is unknown; choose fp16, fp32, int8"):
        PlanOptions(precision="int3")
    with pytest.raises(ConfigError, match="--calibrate is for --precision int4"):
        PlanOptions(precision="int8", calibrate=tmp_path)
    narrow = exported("qwen2").bundle("canonical")  # 32 and 48 wide
    with pytest.raises(ExportError, match=r"multiple of 64 wide.*use --precision int8"):
        quantize_for_plan(narrow, tmp_path, "int4")


@pytest.mark.parametrize(
    ("plan_mb", "grew"), [(140, False), (190, False), (260, True), (270, True)]
)
def test_a_plan_that_grew_back_is_told(plan_mb: int, grew: bool) -> None:
    notes = growth_note(plan_mb * 10**6, 135 * 10**6, 269 * 10**6)
    assert bool(notes) == grew
    assert not notes or f"the plan is {plan_mb} MB where its weights are 135 MB" in notes[0]
    assert growth_note(10**6, 10**5, 2 * 10**5) == []


def test_plans_of_integers_are_smaller(exported: Any, tmp_path: Path) -> None:
    """What B48 is about: a builder that quietly turns integers back would give equal sizes."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "head_dim": 16}
    source = exported("llama", **sizes).folder / "model.onnx"
    found: dict[str, int] = {}
    for precision in ("fp16", "int8", "int4"):
        out = tmp_path / f"{precision}.plan"
        options = {"allow_quality_loss": True} if precision != "fp16" else {}
        made = build(source, out, widths=[1, 8], prefill=32, precision=precision, **options)
        assert made["form"] == "in_place"
        assert made["layers"]["KV_CACHE_UPDATE"] == 4
        assert made["layers"].get("DEQUANTIZE", 0) == (0 if precision == "fp16" else 15)
        record = read_plan_record(out)
        assert (record.precision, record.float_type) == (precision, "float16")
        assert (record.quality is None) == (precision == "fp16")
        found[precision] = out.stat().st_size
    weights = 2 * (2 * 512 * (64 + 32) + 3 * 512 * 1024)  # of the linear layers but the head
    assert found["fp16"] - found["int8"] > 0.8 * weights  # a byte each, less what kernels take
    assert found["fp16"] - found["int4"] > 1.25 * weights  # one and a half
    rebuild = read_plan_record(tmp_path / "int4.plan").rebuild_command(tmp_path / "int4.plan")
    assert "--precision int4 --allow-quality-loss" in rebuild


def test_the_rows_form_of_integers_builds(exported: Any, tmp_path: Path) -> None:
    source = exported("llama", **WIDE).folder / "model.onnx"
    options = {"precision": "int8", "form": "rows", "allow_quality_loss": True}
    found = build(source, tmp_path / "a.plan", widths=[1, 8], **options)
    assert found["layers"]["DEQUANTIZE"] == 15
