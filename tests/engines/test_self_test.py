"""A plan's self-test over the stand-in of TensorRT: it passes, fails in one sentence, bears near ties."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_tensorrt import FakeEngine
from lade_edge.engines import EngineError, open_bundle, open_engine
from lade_edge.engines.plan import read_plan_record
from lade_edge.engines.self_test import LENGTH, SelfTest, make_self_test, run_self_test
from lade_edge.engines.tensorrt_engine import TensorRTEngine
from lade_edge.export.golden import reference_continuation
from plans import make_plan, open_fake

FORMS = ("in_place", "rows")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def golden(tiny_bundle: Path) -> SelfTest:
    notes: list[str] = []
    bundle = open_bundle(tiny_bundle / "model.onnx", verify=False)
    found = reference_continuation(bundle, tiny_bundle / "tokenizer.json", notes)
    assert found is not None and notes == []
    return found


@pytest.fixture
def make(tiny_bundle: Path, tmp_path: Path) -> Callable[..., Path]:
    def plan(form: str, test: SelfTest | None, precision: str = "fp16", **changes: Any) -> Path:
        source = tiny_bundle / "model.onnx"
        return make_plan(source, tmp_path / form, form, precision, self_test=test, **changes)

    return plan


def wrong_at(test: SelfTest, at: int, margin: float) -> SelfTest:
    """The same but for one id, and how sure the reference is said to have been of it."""
    ids, margins = list(test.ids), list(test.margins)
    ids[at], margins[at] = (ids[at] + 1) % 250, margin
    return replace(test, ids=tuple(ids), margins=tuple(margins))


def test_the_reference_is_the_graphs_own_greedy_text(golden: SelfTest, tiny_bundle: Path) -> None:
    engine = open_engine(open_bundle(tiny_bundle), capacity=64, max_width=16)
    assert run_self_test(engine, golden) == list(golden.ids)
    assert engine.length == 0
    again = make_self_test(engine, golden.prompt)
    assert again.ids == golden.ids
    np.testing.assert_allclose(again.margins, golden.margins, atol=1e-4)
    assert len(golden.clear("float16")) >= 8


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_good_plan_passes_once(
    form: str, precision: str, golden: SelfTest, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make(form, golden, precision)
    assert read_plan_record(plan).self_test == golden
    engine = open_fake(plan)
    assert engine.length == 0
    assert run_self_test(engine, golden) == list(golden.ids)
    monkeypatch.setattr(TensorRTEngine, "prefill", lambda *_: pytest.fail("it ran again"))
    open_fake(plan)


@pytest.mark.parametrize("form", FORMS)
def test_wrong_kernels_are_told_in_a_sentence(
    form: str, golden: SelfTest, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that sees no cache, as a wrong attention kernel might, fails at every load."""
    real = FakeEngine.run_session

    def blind(self: FakeEngine, feeds: dict[str, Any]) -> Any:
        return real(self, {n: v * 0 if "_cache." in n else v for n, v in feeds.items()})

    plan = make(form, golden)
    monkeypatch.setattr(FakeEngine, "run_session", blind)
    for _ in range(2):
        with pytest.raises(
            EngineError,
            match=r"this plan says token \d+ where its graph says \d+, at token \d+ of its self-test "
            r"\(\d+ of \d+ clear ones differ\).*build it again here: lade-export .*--overwrite",
        ):
            open_fake(plan)


def test_only_clear_choices_count(golden: SelfTest, make: Any) -> None:
    """An id that the reference hardly preferred may differ; tokens behind it are compared all the same."""
    open_fake(make("rows", wrong_at(golden, LENGTH - 1, 0.03)))
    with pytest.raises(EngineError, match=f"at token {LENGTH} of its self-test"):
        open_fake(make("in_place", wrong_at(golden, LENGTH - 1, 0.05)))


@pytest.mark.parametrize("max_width", [1, 3, 4])
def test_narrow_engines_are_tested_in_narrow_steps(
    max_width: int, golden: SelfTest, make: Any
) -> None:
    engine = open_fake(make("rows", golden), max_width=max_width)
    assert run_self_test(engine, golden) == list(golden.ids)


def test_without_room_nothing_is_compared(golden: SelfTest, make: Any) -> None:
    open_fake(make("rows", wrong_at(golden, 0, 1.0)), capacity=40)


def test_why_there_is_none(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(tiny_bundle / "model.onnx", verify=False)
    notes: list[str] = []
    monkeypatch.setattr("lade_edge.export.build_memory.available_memory", lambda: 10)
    assert reference_continuation(bundle, tmp_path / "none", notes) is None
    monkeypatch.setattr("lade_edge.export.build_memory.available_memory", lambda: None)
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    assert reference_continuation(bundle, tmp_path / "none", notes) is None
    assert "doesn't fit the free memory" in notes[0]
    assert "takes ONNX Runtime on a CPU: onnxruntime is not installed" in notes[1]


def test_a_model_without_tokenizer_has_one_too(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = open_bundle(tiny_bundle / "model.onnx", verify=False)
    found = reference_continuation(bundle, tmp_path / "none", [])
    assert found is not None and len(found.ids) == LENGTH
