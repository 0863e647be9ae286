from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lade_edge.engines import ManifestError
from lade_edge.engines.inspect_cli import describe, main
from lade_edge.engines.self_test import LENGTH, SelfTest
from plans import make_plan


def test_a_bundle(tiny_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny_bundle)]) == 0
    out = capsys.readouterr().out
    assert "architecture: LlamaForCausalLM" in out
    assert out.count("size_bytes") == 2
    assert main([str(tiny_bundle / "model.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tensors"]["inputs"]["attn_mask"] == ["float", [1, 1, "T", "S"]]
    assert found["graphs"][1]["parity"]["tree"] < 1e-4


def test_a_plan(tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = SelfTest(prompt=(1,), ids=(2,) * LENGTH, margins=(0.5, *[0.01] * (LENGTH - 1)))
    plan = make_plan(tiny_bundle / "model.onnx", tmp_path, "rows", precision="fp16", self_test=test)
    assert main([str(plan)]) == 0
    out = capsys.readouterr().out
    assert "buckets: 1x1, 2x2, 4x4, 8x8, 16x16, 32x1" in out
    assert "compute capabilities: 8.7" in out
    assert "rebuild: lade-export" in out
    assert f"self test: {LENGTH} tokens, 1 of them clear enough to count" in out
    plan.write_bytes(b"other")
    assert main([str(plan)]) == 1
    assert "its fingerprint says" in capsys.readouterr().err


def test_a_bad_plan_does_not_hide_its_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (folder / "old.plan").write_bytes(b"")
    (folder / "old.plan.json").write_text("{}")
    (plan,) = describe(folder)["plans"]
    assert "old.plan" in plan["file"]
    assert "old.plan.json" in plan["fault"]


def test_an_empty_graph(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"empty\.onnx holds no graph; expected an ONNX file"):
        describe(tmp_path / "empty.onnx")


def test_a_graph_alone(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "alone.onnx"
    path.write_bytes((tiny_bundle / "model.onnx").read_bytes())
    assert main([str(path)]) == 0
    assert "write_index: int64 [1]" in capsys.readouterr().out
    path.write_bytes(b"not a graph")
    assert main([str(path)]) == 1
    assert "is no ONNX file" in capsys.readouterr().err
    assert main([str(tmp_path / "absent")]) == 1
    assert "does not exist" in capsys.readouterr().err
