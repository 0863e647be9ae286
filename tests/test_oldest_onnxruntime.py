"""The lowered graphs on the oldest supported ONNX Runtime, in an environment without torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from lade_edge.export import ExportOptions, export_model
from lade_edge.runtime import load

ROOT = Path(__file__).resolve().parents[1]
OLDEST = ROOT / ".venv-oldest" / "bin" / "python"
PROMPTS = (
    "Name three fruits and say what colour each of them is.",
    "def fibonacci(n):",
    "Repeat after me: red lorry, yellow lorry, red lorry, yellow lorry.",
)


def run_oldest(*arguments: str) -> str:
    if not OLDEST.exists():
        pytest.skip(f"{OLDEST} is missing; tools/test.sh makes it")
    ended = subprocess.run(
        [str(OLDEST), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_it_is_the_release_meant_and_has_no_torch() -> None:
    script = (
        "import importlib.util as u, onnxruntime; "
        "print(onnxruntime.__version__, u.find_spec('torch'), u.find_spec('transformers'))"
    )
    assert run_oldest("-c", script).split() == ["1.23.2", "None", "None"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "lookahead"])
def test_the_same_ids(mode: str, smollm2_bundle: Path) -> None:
    model = load(smollm2_bundle)
    for prompt in PROMPTS:
        expected = model.generate(prompt, mode=mode, max_new_tokens=48).output_ids
        command = ("-m", "lade_edge.runtime.cli", "--engine", str(smollm2_bundle), prompt)
        found = json.loads(run_oldest(*command, "--mode", mode, "-n", "48", "--json"))
        assert tuple(found["output_ids"]) == expected


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_graphs_run(precision: str, tiny_bundle: Path, tmp_path: Path) -> None:
    options = ExportOptions(precision=precision, slim=True, check=False, allow_quality_loss=True)
    folder = export_model(str(tiny_bundle / "model.onnx"), tmp_path / precision, options).folder
    command = ("-m", "lade_edge.runtime.cli", "--engine", str(folder), "ab", "--mode", "plain")
    found = json.loads(run_oldest(*command, "-n", "16", "--ignore-eos", "--json"))
    assert len(found["output_ids"]) == 16
