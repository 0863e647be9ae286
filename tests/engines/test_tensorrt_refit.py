"""Stripped plans: their weights are put back at load, or one sentence says what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_tensorrt import ONE_DEVICE, STRIPPED, FakeCudaApi, FakeRefitter, fake_library
from lade_edge.engines import EngineError, ManifestError, describe_file, open_bundle, open_engine
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.plan import fingerprint_path, plan_record_text, read_plan_record
from lade_edge.engines.tensorrt_engine import TensorRTEngine
from lade_edge.engines.tensorrt_library import TensorRTLibrary
from plans import lower, make_plan
from reference_steps import TREE, engine_logits, random_step


@pytest.fixture
def stripped(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A plan whose content holds nothing, and the graph it was built from beside it."""
    plan = make_plan(tiny_bundle / "model.onnx", tmp_path, "rows")
    graph = lower(tiny_bundle / "model.onnx", tmp_path / "tiny.plan.onnx", "rows", "fp32", 128)
    plan.write_bytes(STRIPPED)
    files = (graph, graph.with_name("tiny.plan.onnx.data"))
    record = replace(
        read_plan_record(plan),
        plan=describe_file(plan),
        weights={path.name: describe_file(path) for path in files},
        options=("--strip-weights",),
    )
    fingerprint_path(plan).write_text(plan_record_text(record))
    for left in ("lowered.onnx", "lowered.onnx.data"):
        (tmp_path / left).unlink()
    return plan


def open_fake(plan: Path, *, without: str = "") -> TensorRTEngine:
    api = FakeCudaApi()

    def library(flavour: str) -> TensorRTLibrary:
        found = fake_library(api)(flavour)
        if without:
            delattr(found.module, without)
        return found

    return TensorRTEngine(
        open_bundle(plan),
        library=library,
        driver=lambda: ONE_DEVICE,
        cuda=lambda: CudaRuntime(api),
    )


def test_weights_come_back(stripped: Path, tiny_bundle: Path) -> None:
    reference = open_engine(open_bundle(tiny_bundle / "model.onnx"), capacity=100, max_width=16)
    step = random_step(256, 21, TREE)
    got, expected = (engine_logits(one, step) for one in (open_fake(stripped), reference))
    np.testing.assert_allclose(got, expected, atol=2e-4)


@pytest.mark.parametrize("name", ["tiny.plan.onnx", "tiny.plan.onnx.data"])
@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_what_is_missing_is_named(name: str, damage: str, stripped: Path) -> None:
    path = stripped.with_name(name)
    content = path.read_bytes()
    path.unlink()
    if damage == "short":
        path.write_bytes(content[:-1])
    elif damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    sentence = f"{name} is missing beside it" if damage == "gone" else "doesn't hold the weights"
    with pytest.raises(ManifestError, match=f"{sentence}.*lade-export .*--strip-weights") as caught:
        open_bundle(stripped)
    assert name in str(caught.value)


@pytest.mark.parametrize("name", ["Refitter", "OnnxParserRefitter"])
def test_a_library_that_cant_refit(name: str, stripped: Path) -> None:
    with pytest.raises(EngineError, match=f"has no {name}, which .* without --strip-weights"):
        open_fake(stripped, without=name)


def test_a_graph_that_isnt_the_plans(stripped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeRefitter, "UNSET", ("lm_head.weight", "b"))
    with pytest.raises(EngineError, match=r"lacks 2 of the plan's weights, lm_head\.weight first"):
        open_fake(stripped)
    monkeypatch.setattr(FakeRefitter, "UNSET", ())
    monkeypatch.setattr(FakeRefitter, "refit_cuda_engine", lambda self: False)
    with pytest.raises(EngineError, match="can't put the weights back"):
        open_fake(stripped)


def test_a_graph_that_cant_be_read(stripped: Path) -> None:
    bundle = open_bundle(stripped)
    stripped.with_name("tiny.plan.onnx").write_bytes(b"")
    api: Any = FakeCudaApi()
    with pytest.raises(EngineError, match=r"can't take the weights of .* \(no graph in it\)"):
        TensorRTEngine(
            bundle,
            library=fake_library(api),
            driver=lambda: ONE_DEVICE,
            cuda=lambda: CudaRuntime(api),
        )
