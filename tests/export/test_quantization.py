"""Quantised graphs of tiny models: close to float32, rows on their own, quality measured and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from lade_edge.engines import ConfigError, ExportError, Quality, open_bundle, open_engine
from lade_edge.engines.protocol import Engine
from lade_edge.export import ExportOptions, ExportReport, export_model
from lade_edge.export.cli import main
from lade_edge.export.quality import check_quality
from reference_steps import CHAIN, TREE, engine_logits, random_step
from tiny_models import VOCAB_SIZE

FAMILIES = ("llama", "gemma2", "gpt2", "cohere", "qwen3_moe")
FORMS = ("int8", "int4", "int8 cached in int8")
BOUNDS = {"int8": 0.2, "int4": 0.6}  # of the logits' size: random models amplify every difference


@pytest.fixture(scope="module")
def quantized(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Called with a family and one of FORMS, returns the float32 bundle and the quantised one."""
    done: dict[tuple[str, str], tuple[Any, ExportReport]] = {}
    text = tmp_path_factory.mktemp("text") / "words.txt"
    words = np.random.default_rng(5).integers(3, VOCAB_SIZE, 1500)
    text.write_text(" ".join(f"w{word}" for word in words))

    def quantize(family: str, form: str) -> tuple[Any, ExportReport]:
        if (family, form) not in done:
            tiny = exported(family)
            precision, _, kv_cache = form.partition(" cached in ")
            options = ExportOptions(
                precision=precision, slim=True, allow_quality_loss=True, check=False,
                calibrate=text, kv_cache=kv_cache or "fp32",
            )  # fmt: skip
            out = tmp_path_factory.mktemp(family) / precision
            report = export_model(str(tiny.folder / "model.onnx"), out, options)
            done[family, form] = tiny, report
        return done[family, form]

    return quantize


def opened(folder: Path) -> Engine:
    return open_engine(open_bundle(folder), capacity=100, max_width=16, threads=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "qwen3_moe"])
def test_close_to_float(family: str, form: str, quantized: Any) -> None:
    tiny, report = quantized(family, form)
    for parents in (CHAIN, TREE):  # a mixture's experts change with the last bits: not compared
        step = random_step(VOCAB_SIZE, 21, parents)
        expected = engine_logits(tiny.engine("lowered"), step)
        error = engine_logits(opened(report.folder), step) - expected
        found = np.sqrt(np.square(error).mean() / np.square(expected).mean())
        assert 1e-6 < found < BOUNDS[form[:4]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_does_not_depend_on_its_companions(family: str, form: str, quantized: Any) -> None:
    engine = opened(quantized(family, form)[1].folder)
    rng = np.random.default_rng(3)
    prefix = rng.integers(3, VOCAB_SIZE, 21)
    engine.prefill(prefix)
    chain = rng.integers(3, VOCAB_SIZE, 12)

    def rows(tokens: np.ndarray) -> list[bytes]:
        width = len(tokens)
        visible = np.tri(width, dtype=np.bool_)
        engine.step(tokens, 21 + np.arange(width), visible, np.arange(width))
        return [engine.logits(row).tobytes() for row in range(width)]

    two = rows(chain[:2])
    for width in (3, 5, 8, 12):
        other = chain.copy()
        other[2:] = rng.integers(3, VOCAB_SIZE, 10)
        assert rows(other[:width])[:2] == two


@pytest.mark.parametrize("family", FAMILIES)
def test_no_dynamic_scale_of_a_whole_step(family: str, quantized: Any) -> None:
    for precision in BOUNDS:
        graph = ir.load(
            quantized(family, precision)[1].folder / f"onnxruntime-{precision}.onnx"
        ).graph
        kinds = {node.op_type for node in graph}
        assert not kinds & {"DynamicQuantizeLinear", "DynamicQuantizeMatMul"}
        assert ("MatMulNBits" in kinds) == (precision == "int4")
        assert ("MatMulIntegerToFloat" in kinds) == (precision == "int8")


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_left_in_float_are_the_routers(family: str, quantized: Any) -> None:
    graph = ir.load(quantized(family, "int8")[1].folder / "onnxruntime-int8.onnx").graph
    left = [
        node.inputs[1].shape
        for node in graph
        if node.op_type in ("MatMul", "FusedMatMul", "Gemm") and node.inputs[1].is_initializer()
    ]
    assert [sorted(shape) for shape in left] == ([[6, 32]] if family == "qwen3_moe" else [])


def test_a_tied_table_is_stored_once(quantized: Any) -> None:
    for precision in BOUNDS:
        graph = ir.load(
            quantized("cohere", precision)[1].folder / f"onnxruntime-{precision}.onnx"
        ).graph
        tables = [
            v for v in graph.initializers.values() if len(v.shape) > 1 and v.shape[0] == VOCAB_SIZE
        ]
        assert len([v for v in tables if v.dtype in (ir.DataType.INT8, ir.DataType.UINT8)]) == 1


@pytest.mark.parametrize("family", [None, *FAMILIES])
def test_rotation_and_smoothing_change_nothing_in_float(
    family: str | None, exported: Any, tiny_bundle: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """All of int8 but the integers; every input rotated that may be."""
    from lade_edge.export import quantization, smoothing

    monkeypatch.setattr(quantization, "lower_to_int8", lambda graph, linears, table: None)
    monkeypatch.setattr(smoothing, "_WORTH", 1e9)
    folder = exported(family).folder if family else tiny_bundle
    options = ExportOptions(precision="int8", slim=True, check=False)
    report = export_model(str(folder / "model.onnx"), tmp_path / "out", options)
    assert report.quantized is not None
    assert report.quantized.smoothed >= 4
    if family is None:  # wide enough to be rotated: two gates and the head
        assert report.quantized.rotated == 3
    step = random_step(VOCAB_SIZE, 21, TREE)
    expected = engine_logits(opened(folder / "onnxruntime-fp32.onnx"), step)
    found = engine_logits(opened(report.folder), step)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    assert report.manifest.quality is not None
    assert report.manifest.quality.perplexity_ratio == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_values_take_factors_from_behind_attention(family: str, exported: Any) -> None:
    """Whether attention takes the projection whole (llama) or in three parts."""
    from lade_edge.export.linear_layers import by_source, find_linears, find_token_table
    from lade_edge.export.smoothing import _Smoother

    graph = ir.load(exported(family).folder / "onnxruntime-fp32.onnx").graph
    linears = find_linears(graph)
    smoother = _Smoother(graph, linears, find_token_table(graph))
    attended = [
        source
        for source in by_source(linears)
        if source.producer() is not None and source.producer().op_type == "GroupQueryAttention"
    ]
    assert len(attended) == 2
    assert all(smoother._fold_of(source)[0] is not None for source in attended)


def test_rows_of_zeros_give_zeros(tiny_bundle: Path, tmp_path: Path) -> None:
    """The scale of such a row is 0, and nothing must become of dividing by it."""
    import onnxruntime as ort

    from lade_edge.export.graph_edit import GraphEditor
    from lade_edge.export.linear_layers import find_linears
    from lade_edge.export.lower_int8 import lower_to_int8
    from lade_edge.export.lower_onnxruntime import stamp

    ids = ir.Value(
        name="input_ids", shape=ir.Shape([1, "T"]), type=ir.TensorType(ir.DataType.INT64)
    )
    x = ir.Value(name="x", shape=ir.Shape([1, "T", 32]), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph([ids, x], [], nodes=[], opset_imports={"": 21}, name="g")
    edit = GraphEditor(graph)
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(32, 8)).astype(np.float32)
    (out,) = edit.emit("MatMul", [x, edit.weight(ir.tensor(matrix, name="w"))])
    out.name, out.shape = "out", ir.Shape([1, "T", 8])
    out.type = ir.TensorType(ir.DataType.FLOAT)
    graph.outputs.append(out)
    lower_to_int8(graph, find_linears(graph), None)
    model = ir.Model(graph, ir_version=10)
    stamp(model)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString())
    rows = rng.normal(size=(1, 3, 32)).astype(np.float32)
    rows[0, 1] = 0
    (found,) = session.run(None, {"x": rows, "input_ids": np.zeros((1, 3), np.int64)})
    assert not found[0, 1].any()
    np.testing.assert_allclose(found, rows @ matrix, atol=0.3)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_the_manifest_keeps_the_quality(precision: str, tiny_bundle: Path, tmp_path: Path) -> None:
    options = ExportOptions(precision=precision, allow_quality_loss=True)
    report = export_model(str(tiny_bundle / "model.onnx"), tmp_path / "out", options)
    manifest = open_bundle(report.folder).manifest
    assert manifest.quality == report.manifest.quality
    assert manifest.quality is not None
    assert 0.5 < manifest.quality.top1_agreement <= 1
    assert [g.precision for g in manifest.graphs] == [precision, "fp32"]
    assert set(manifest.parity) == {f"onnxruntime-{precision}.onnx", "model.onnx"}
    assert not list(report.folder.glob(".float32-*"))
    smaller = report.folder / f"onnxruntime-{precision}.onnx.data"
    assert smaller.stat().st_size < 0.6 * (report.folder / "model.onnx.data").stat().st_size


def lossy(ratio: float) -> Quality:
    return Quality(perplexity_ratio=ratio, top1_agreement=0.5, perplexity=9.0, tokens=10)


def test_quality_is_judged() -> None:
    assert check_quality(lossy(1.02), "int8", allow_loss=False) is None
    with pytest.raises(ExportError, match=r"int4 with an int8 KV cache has .* --kv-cache fp32 or"):
        check_quality(lossy(1.2), "int4", kv_cache="int8", allow_loss=False)
    said = check_quality(lossy(1.021), "int8", allow_loss=False)
    assert said is not None
    assert "int8 has 1.021 times the perplexity of fp32" in said
    for ratio in (1.11, float("nan")):
        with pytest.raises(ExportError, match="or accept it with --allow-quality-loss"):
            check_quality(lossy(ratio), "int4", allow_loss=False)
        assert check_quality(lossy(ratio), "int4", allow_loss=True) is not None


def test_a_lossy_export_is_not_kept(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from lade_edge.export import quality

    monkeypatch.setattr(quality, "FAIL_ABOVE", 0.5)
    monkeypatch.setattr(quality, "WARN_ABOVE", 0.4)
    command = [str(tiny_bundle / "model.onnx"), "--precision", "int8", "-o", str(tmp_path / "out")]
    assert main(command) == 1
    assert "--allow-quality-loss" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*command, "--allow-quality-loss", "--slim"]) == 0
    said = capsys.readouterr()
    assert "lade-export: warning: int8 has" in said.err
    assert "quality against fp32: perplexity ratio" in said.out


def test_a_calibration_text_of_ones_own(tiny_bundle: Path, tmp_path: Path) -> None:
    source = str(tiny_bundle / "model.onnx")
    text = tmp_path / "mine.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)
    options = ExportOptions(
        precision="int8", calibrate=text, slim=True, check=False, allow_quality_loss=True
    )
    assert export_model(source, tmp_path / "out", options).manifest.quality is not None
    text.write_text("short")
    with pytest.raises(ConfigError, match=r"mine\.txt has \d+ tokens, expected at least 32"):
        export_model(source, tmp_path / "two", options)
    text.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        export_model(source, tmp_path / "two", options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "int8", "target": "canonical"}, "--target canonical makes none"),
        ({"calibrate": Path("x")}, "--calibrate is for --precision int8 and int4, not fp32"),
        ({"precision": "int4", "calibrate": Path("absent")}, "--calibrate absent is no file"),
    ],
)
def test_options_that_dont_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExportOptions(**options)


def test_fewer_bits_take_less_space(quantized: Any) -> None:
    """Matrices alone, by what they need: a byte or half of one a weight, and their scales."""
    tiny, _ = quantized("llama", "int8")
    full = matrix_bytes(tiny.folder / "onnxruntime-fp32.onnx")
    for precision, share in (("int8", 0.25), ("int4", 0.125)):
        report = quantized("llama", precision)[1]
        found = matrix_bytes(report.folder / f"onnxruntime-{precision}.onnx")
        assert share < found / full < 2 * share, precision  # the token table keeps eight bits


def matrix_bytes(path: Path) -> int:
    stored = ir.load(path).graph.initializers.values()
    return sum(value.const_value.nbytes for value in stored if len(value.shape) > 1)
