"""The check that decides whether an export is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from lade_edge.engines import ParityError
from lade_edge.export import ExportOptions, canonical, export_model, lower_onnxruntime
from lade_edge.export.lower_onnxruntime import use_skip_norms
from lade_edge.export.parity import STEPS, check_parity, prefix_length, transformers_reference
from lade_edge.export.rotary import fuse_rotary
from lade_edge.export.tracing import model_spec
from reference_steps import TREE, difference, expected_logits, random_step
from tiny_models import VOCAB_SIZE, tiny_config, tiny_model


def test_report_names_every_step(exported: Any) -> None:
    manifest = exported("gemma2").bundle("canonical").manifest
    assert manifest.parity.keys() == {"model.onnx", "onnxruntime-fp32.onnx"}
    for found in manifest.parity.values():
        assert found.keys() == {"prefill", *(step.name for step in STEPS)}
        assert max(found.values()) < 1e-5


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3_text", "gpt2"])
def test_reference_is_what_transformers_says(family: str, exported: Any) -> None:
    """Explicit masks and positions give what a plain call gives, past the window too."""
    model = exported(family).model
    spec = exported(family).bundle("canonical").manifest.model
    step = random_step(VOCAB_SIZE, 21, TREE)
    whole = np.tri(30, dtype=np.bool_)
    whole[21:, 21:] = step.visible
    expected = expected_logits(model, step)
    got = transformers_reference(model, spec)(
        np.concatenate([step.prefix, step.tokens]),
        np.concatenate([np.arange(21), step.positions]),
        whole,
    )
    assert difference(got[21:], expected) < 1e-5


def test_prefix_reaches_beyond_a_short_window(exported: Any) -> None:
    spec = exported("mistral").bundle("canonical").manifest.model
    assert spec.sliding_window is not None
    assert prefix_length(spec, 512) > spec.sliding_window
    assert prefix_length(spec, 10) == 3


def test_wrong_lowering_fails_the_export(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(graph: ir.Graph) -> None:
        use_skip_norms(graph)
        node = next(n for n in graph if n.op_type == "SkipSimplifiedLayerNormalization")
        node.attributes["epsilon"] = ir.AttrFloat32("epsilon", 0.01)

    monkeypatch.setattr(lower_onnxruntime, "use_skip_norms", faulty)
    source = str(exported("llama").folder / "model.onnx")
    with pytest.raises(
        ParityError, match=r"onnxruntime .* cpu gqa fp32 differs .* expected at most"
    ):
        export_model(source, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    unchecked = export_model(source, tmp_path / "out", ExportOptions(check=False))
    assert not unchecked.manifest.parity


def test_wrong_trace_fails_the_export(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def faulty(graph: ir.Graph) -> None:
        fuse_rotary(graph)
        node = next(n for n in graph if n.op_type == "RotaryEmbedding")
        node.attributes["interleaved"] = ir.AttrInt64("interleaved", 1)

    monkeypatch.setattr(canonical, "fuse_rotary", faulty)
    with pytest.raises(ParityError, match="differs from the reference by"):
        export_model(str(exported("qwen3").source), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_logits_that_are_not_finite_fail(exported: Any) -> None:
    tiny = exported("llama")
    spec = tiny.bundle("canonical").manifest.model

    def broken(tokens: Any, *_: Any) -> Any:
        return np.full((len(tokens), VOCAB_SIZE), np.nan, np.float32)

    with pytest.raises(ParityError, match="by nan of the largest logit"):
        check_parity(tiny.engine("canonical"), spec, broken, "fp32")


def test_spec_is_read_off_the_model(exported: Any) -> None:
    fresh = tiny_model(tiny_config("gemma2"))
    assert model_spec(fresh) == exported("gemma2").bundle("lowered").manifest.model
