"""Real builds with TensorRT-RTX, which needs no GPU for them; running what it builds would.

They run in an environment of their own without torch, which tools/test.sh makes.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lade_edge.engines import ManifestError, open_bundle
from lade_edge.engines.plan import read_plan_record

ROOT = Path(__file__).resolve().parents[1]
RTX = Path(os.environ.get("LADE_RTX_PYTHON", ROOT / ".venv-rtx" / "bin" / "python"))
EXPORT = ("-m", "lade_edge.export.cli")
BUILD = """
import json, sys
from pathlib import Path
from lade_edge.export.plan_export import PlanOptions, export_plan
made = export_plan(sys.argv[1], Path(sys.argv[2]), PlanOptions(**json.loads(sys.argv[3])))
print(json.dumps({"form": made.record.form, "layers": made.layers, "notes": made.notes}))
"""


def run_rtx(*arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    if not RTX.exists():
        pytest.skip(f"{RTX} is missing; tools/test.sh makes it where tensorrt-rtx can be installed")
    ended = subprocess.run(
        [str(RTX), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == expect, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended


def build(source: Path, out: Path, **options: Any) -> dict[str, Any]:
    ended = run_rtx("-c", BUILD, str(source), str(out), json.dumps({"capacity": 100, **options}))
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def test_in_place_layers_are_in_the_network(tiny_bundle: Path, tmp_path: Path) -> None:
    found = build(tiny_bundle / "model.onnx", tmp_path / "a.plan", widths=[1, 8], prefill=32)
    assert found["form"] == "in_place"
    assert found["layers"]["KV_CACHE_UPDATE"] == 4
    assert found["layers"]["ATTENTION_INPUT"] == 2
    record = read_plan_record(tmp_path / "a.plan")
    assert [(b.width, b.rows) for b in record.buckets] == [(1, 1), (8, 8), (32, 1)]
    assert [(p.widths, p.rows) for p in record.profiles] == [((1, 8, 32), (1, 8, 8))]
    assert (record.flavour, record.precision, record.slots) == ("tensorrt_rtx", "fp16", 128)
    assert open_bundle(tmp_path / "a.plan").manifest.capacity == 100


def test_a_profile_per_width(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.plan"
    build(tiny_bundle / "model.onnx", out, widths=[1, 8], prefill=32, profile_per_width=True)
    record = read_plan_record(out)
    assert [record.profile_of(bucket) for bucket in record.buckets] == [0, 1, 2]
    assert "--profile-per-width" in record.rebuild_command(out)


def test_the_form_for_older_parsers_builds_too(tiny_bundle: Path, tmp_path: Path) -> None:
    found = build(tiny_bundle / "model.onnx", tmp_path / "a.plan", widths=[1, 8], form="rows")
    assert "KV_CACHE_UPDATE" not in found["layers"]
    assert "ATTENTION_INPUT" not in found["layers"]


def test_the_command_for_two_targets(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "tiny.plan"
    source = str(tiny_bundle / "model.onnx")
    ended = run_rtx(
        *EXPORT, source, "-o", str(out), "--device", "sm86", "--device", "sm89",
        "--widths", "1,8", "--capacity", "100",
    )  # fmt: skip
    assert "tensorrt_rtx" in ended.stdout
    assert "4 cache layers updated in place" in ended.stdout
    assert "the build takes about" in ended.stderr
    assert read_plan_record(out).compute_capabilities == ("8.6", "8.9")
    names = {path.name for path in out.parent.iterdir()}
    assert {"tiny.plan", "tiny.plan.json", "tokenizer.json"} <= names
    assert not [name for name in names if "partial" in name]
    ended = run_rtx(*EXPORT, source, "-o", str(out), expect=1)
    assert "exists already" in ended.stderr
    ended = run_rtx("-m", "lade_edge.runtime.cli", "--engine", str(out), "hello", expect=1)
    assert len(ended.stderr.splitlines()) == 1
    assert "can't be run:" in ended.stderr


def test_refusals_leave_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    source = str(tiny_bundle / "model.onnx")
    for words, sentence in (
        (["--strip-weights"], "can't do --strip-weights"),
        (["--device", "sm87"], "--device sm87 is no target"),
        (["--capacity", "257"], "exceeds the 256 positions"),
    ):
        ended = run_rtx(*EXPORT, source, "-o", str(tmp_path / "a.plan"), *words, expect=1)
        assert sentence in ended.stderr.splitlines()[-1]
    ended = run_rtx(
        *EXPORT,
        str(tiny_bundle / "onnxruntime-fp32.onnx"),
        "-o",
        str(tmp_path / "a.plan"),
        expect=1,
    )
    assert "a plan is built from a canonical one" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_stripped_weights_lie_beside_the_plan(tiny_bundle: Path, tmp_path: Path) -> None:
    """TensorRT-RTX can't strip, so its plan keeps them; what is put beside it is the same."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from lade_edge.export import plan_export, tensorrt_build\n"
        "from lade_edge.export.tensorrt_build import BuilderOptions\n"
        "plan_export.check_options = lambda library, options: None\n"
        "tensorrt_build._flags = lambda options: []\n"
        "options = plan_export.PlanOptions(capacity=100, builder=BuilderOptions(strip_weights=True))\n"
        "plan_export.export_plan(sys.argv[1], Path(sys.argv[2]), options)\n"
    )
    out = tmp_path / "new" / "a.plan"
    run_rtx("-c", script, str(tiny_bundle / "model.onnx"), str(out))
    record = read_plan_record(out)
    assert list(record.weights or {}) == ["a.plan.onnx", "a.plan.onnx.data"]
    assert "--strip-weights" in record.rebuild_command(out)
    assert open_bundle(out).graph.file == "a.plan"
    assert record.self_test is not None
    (out.parent / "a.plan.onnx").unlink()
    with pytest.raises(ManifestError, match=r"a\.plan\.onnx is missing beside it"):
        open_bundle(out)


def test_cuda_python_takes_our_arguments() -> None:
    """Without a driver every call fails with its status, but only after its arguments were taken."""
    script = (
        "from cuda.bindings import runtime as api\n"
        "from lade_edge.engines.cuda_driver import probe_driver\n"
        "from lade_edge.engines.cuda_runtime import CudaRuntime\n"
        "from lade_edge.engines.errors import EngineError\n"
        "if probe_driver().devices: raise SystemExit(77)\n"
        "try:\n"
        "    CudaRuntime()\n"
        "except EngineError as error:\n"
        "    print(error)\n"
        "seen = []\n"
        "class Api:\n"
        "    def __getattr__(self, name):\n"
        "        real = getattr(api, name)\n"
        "        if not name.startswith('cuda') or isinstance(real, type): return real\n"
        "        def call(*arguments):\n"
        "            status, *results = real(*arguments)\n"
        "            seen.append((name, int(status)))\n"
        "            stream = api.cudaStream_t(0) if name == 'cudaStreamCreate' else 0\n"
        "            graph = api.cudaGraph_t(0) if name == 'cudaStreamEndCapture' else stream\n"
        "            ready = api.cudaGraphExec_t(0) if name == 'cudaGraphInstantiate' else graph\n"
        "            return (0, *(ready for _ in results))\n"
        "        return call\n"
        "cuda = CudaRuntime(Api())\n"
        "cuda.allocate(8, 'x'), cuda.allocate_host(8)\n"
        "cuda.upload(0, 0, 8), cuda.download(0, 0, 8), cuda.copy_rows(0, 16, 0, 16, 8, 2)\n"
        "cuda.capture(cuda.synchronise)()\n"
        "assert int(cuda.stream) == 0\n"
        "print(len(seen), {status for _, status in seen})\n"
    )
    sentence, seen = run_rtx("-c", script).stdout.splitlines()
    assert sentence.startswith("cudaStreamCreate failed: ")
    assert sentence.endswith("(CUDA error 35)")
    assert seen == "12 {35}"


def test_an_interrupted_build_leaves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from lade_edge.export.plan_export import PlanOptions, export_plan\n"
        "def stage(name, done, total):\n"
        "    if name not in ('lower', 'write'):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "try:\n"
        "    export_plan(sys.argv[1], Path(sys.argv[2]), PlanOptions(capacity=100), stage)\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    abandoned = tmp_path / ".a.plan.partial-99999999"
    abandoned.mkdir()
    ended = run_rtx("-c", script, str(tiny_bundle / "model.onnx"), str(tmp_path / "a.plan"))
    assert ended.stdout == "stopped\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["in_place", "rows"])
def test_a_real_model(form: str, smollm2_bundle: Path, tmp_path: Path) -> None:
    """30 layers, all widths in one profile: the weights are in the plan once."""
    source, out = smollm2_bundle / "model.onnx", tmp_path / "a.plan"
    found = build(source, out, capacity=1024, form=form)
    assert found["layers"].get("KV_CACHE_UPDATE", 0) == (60 if form == "in_place" else 0)
    assert 270e6 < out.stat().st_size < 300e6
