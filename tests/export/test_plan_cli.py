"""``lade-export`` asked for a plan where there is no TensorRT, and what it tells about options."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lade_edge.engines import ConfigError, ExportError
from lade_edge.engines.plan import PlanProfile
from lade_edge.engines.tensorrt_library import TensorRTLibrary
from lade_edge.export import build_memory
from lade_edge.export.cli import main
from lade_edge.export.plan_export import default_plan
from lade_edge.export.tensorrt_build import (
    BuilderOptions,
    check_options,
    preferred_forms,
    profile_shapes,
)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    return lines[-1]


@pytest.fixture
def no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_tensorrt")
@pytest.mark.parametrize("words", [["-o", "a.plan"], ["--target", "tensorrt"], []])
def test_without_tensorrt(
    words: list[str],
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tiny_bundle.iterdir())
    assert main([str(tiny_bundle / "model.onnx"), *words]) == 1
    sentence = said(capsys)
    assert "TensorRT is not installed" in sentence
    assert "TensorRT-RTX is not installed (pip install tensorrt-rtx)" in sentence
    assert ("add --target onnxruntime" in sentence) == (not words)
    assert list(tmp_path.iterdir()) == []
    assert sorted(tiny_bundle.iterdir()) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "a.plan", "--target", "onnxruntime"], "makes a bundle folder; drop one of them"),
        (["-o", "a.plan", "--slim"], "--slim has no meaning for a TensorRT plan"),
        (["-o", "folder", "--workspace", "9"], "--workspace is for TensorRT plans"),
        (["-o", "a.plan", "--widths", "0,4"], "--widths 0,4 is outside 1..1024"),
        (["-o", "a.plan", "--workspace", "0"], "--workspace is 0 MB, expected at least 1"),
    ],
)
def test_options_that_dont_fit(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["model.onnx", *words]) == 1
    assert message in said(capsys)
    assert list(tmp_path.iterdir()) == []


def library(flavour: str, **module: Any) -> TensorRTLibrary:
    return TensorRTLibrary(SimpleNamespace(**module), flavour, "1.2")


@pytest.mark.parametrize(
    ("flavour", "options", "message"),
    [
        ("tensorrt_rtx", {"version_compatible": True}, "can't do --version-compatible"),
        ("tensorrt_rtx", {"strip_weights": True}, "can't do --strip-weights"),
        ("tensorrt_rtx", {"timing_cache": Path("x")}, "can't do --timing-cache"),
        ("tensorrt_rtx", {"devices": ("sm87",)}, "--device sm87 is no target .* it has sm86"),
        ("tensorrt", {"devices": ("sm86",)}, "--device is for TensorRT-RTX"),
        ("tensorrt", {"version_compatible": True}, "TensorRT 1.2 has no VERSION_COMPATIBLE"),
    ],
)
def test_what_a_flavour_cant_do(flavour: str, options: dict[str, Any], message: str) -> None:
    targets = SimpleNamespace(__members__={"NONE": 0, "SM86": 1})
    found = library(flavour, BuilderFlag=object(), ComputeCapability=targets)
    with pytest.raises(ConfigError, match=message):
        check_options(found, BuilderOptions(**options))


@pytest.mark.parametrize(
    ("source", "plan"),
    [
        ("a/smollm2/model.onnx", "a/smollm2/smollm2.plan"),
        ("a/other.onnx", "a/other.plan"),
        ("a/llama", "llama/llama.plan"),
        ("a/llama.gguf", "llama/llama.plan"),
        ("org/name", "name/name.plan"),
    ],
)
def test_where_a_plan_goes(source: str, plan: str) -> None:
    assert default_plan(source) == Path(plan)


def test_the_form_follows_what_the_library_has() -> None:
    old = library("tensorrt", INetworkDefinition=SimpleNamespace(add_attention=1))
    new = library(
        "tensorrt", INetworkDefinition=SimpleNamespace(add_attention=1, add_kv_cache_update=1)
    )
    assert preferred_forms(old) == ("rows",)
    assert preferred_forms(new) == ("in_place", "rows")


def test_shapes_of_a_profile() -> None:
    profile = PlanProfile(widths=(1, 8, 32), rows=(1, 8, 16))
    assert profile_shapes("logit_rows", (-1,), profile) == [(1,), (8,), (16,)]
    assert profile_shapes("attn_mask", (1, 1, -1, 128), profile)[2] == (1, 1, 32, 128)
    assert profile_shapes("step_mask", (1, 1, -1, -1), profile)[1] == (1, 1, 8, 8)


def test_memory_is_refused_with_figures(tiny_bundle: Path, tmp_path: Path) -> None:
    from lade_edge.engines import open_bundle

    spec = open_bundle(tiny_bundle).manifest.model
    found = build_memory.estimate(269_000_000, spec, 128, 2, 256)
    assert found.kv_cache == 2 * spec.num_layers * spec.num_kv_heads * 128 * spec.head_size * 2
    assert "weights 269 MB" in found.sentence()
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  9 kB\nMemAvailable:   500000 kB\n")
    available = build_memory.available_memory(meminfo)
    assert available == 512_000_000
    with pytest.raises(
        ExportError, match=r"takes about 1,\d\d\d MB and 512 MB are available.*--force"
    ):
        build_memory.refuse_too_large(found, available)
    build_memory.refuse_too_large(found, None)
    assert build_memory.estimate(269_000_000, spec, 128, 2, 256, 8).peak > found.peak
    integers = build_memory.estimate(192_000_000, spec, 128, 2, 256, floats=269_000_000)
    assert integers.peak == found.peak
    assert "weights 192 MB" in integers.sentence()
