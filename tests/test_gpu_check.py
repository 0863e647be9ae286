"""The script for machines with a GPU, tried where there is none: on ONNX Runtime's CPU provider."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpu_check
import pytest

from lade_edge.engines import EngineError, ParityError
from lade_edge.engines.cuda_driver import Device, Driver, probe_driver

ROOT = Path(__file__).resolve().parents[1]
NO_DEVICE = bool(probe_driver().reason)
DEVICE = Driver(
    version="12.6",
    devices=(Device(name="x", compute_capability="8.7", memory_bytes=8 << 30, integrated=True),),
)


def test_everything_but_the_device(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parity, step times, twenty prompts in three modes, and a report, in a process of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report = tmp_path / "report.json"
    words = [str(tiny_bundle), "--way", "cpu", "--report", str(report), "--tokens", "12"]
    assert gpu_check.main(words) == 0
    content = json.loads(report.read_text())
    (found,) = content["ways"]
    assert set(found["parity"]) == {"prefill", "single", "multi_token", "tree"}
    assert max(found["parity"].values()) < 1e-4
    assert list(found["step_ms"]) == ["1", "2", "4", "8", "16", "32", "64"]
    assert min(found["step_ms"].values()) > 0
    assert found["prompts"]["prompts"] + found["prompts"]["too_long"] == 20
    ran = found["prompts"]["prompts"]
    assert ran >= 10
    modes = found["prompts"]["modes"]
    assert set(modes) == {"plain", "lookahead", "auto"}
    assert modes["lookahead"]["ids_equal"] == modes["auto"]["ids_equal"] == ran
    assert modes["plain"]["tokens_per_step"] == 1
    assert modes["auto"]["host_us_per_step"] > 0
    assert content["machine"]["driver"]["reason"] == probe_driver().reason
    assert {"name", "state", "detail"} == set(content["machine"]["doctor"][0])


@pytest.mark.skipif(not NO_DEVICE, reason="this machine has a device")
def test_without_a_device_it_is_one_sentence(tiny_bundle: Path, tmp_path: Path) -> None:
    """Before anything is installed, and from the Python part alone."""
    report = tmp_path / "report.json"
    for words in (
        ["bash", "tools/gpu_check.sh", str(tiny_bundle)],
        [sys.executable, "tools/gpu_check.py", str(tiny_bundle), "--report", str(report)],
    ):
        ended = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT,
                               env={**os.environ, "HOME": str(tmp_path)}, timeout=60)  # fmt: skip
        assert ended.returncode == 1
        (sentence,) = ended.stderr.splitlines()
        assert sentence.startswith(f"gpu_check: {probe_driver().reason}; run this on a machine")
    assert not report.exists()
    assert not (ROOT / ".venv-gpu").exists()


def test_what_is_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([str(tmp_path), "--way", "cpu"]) == 1
    assert capsys.readouterr().err.startswith("gpu_check: ")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (EngineError("TensorRT is not installed (pip install tensorrt)"), 3),
        (EngineError("this onnxruntime 1.32 has no CUDAExecutionProvider; install"), 3),
        (ParityError("differs from the reference by 0.3"), 1),
    ],
)
def test_missing_is_told_from_failed(
    error: Exception,
    status: int,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(gpu_check, "check_way", fail)
    assert gpu_check.main([str(tiny_bundle), "--inside", "--way", "rtx"]) == status
    assert str(error) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([{"way": "rtx", "not here": "x"}], 1),
        ([{"way": "rtx", "failed": "x"}, {"way": "cuda", "prompts": {}}], 1),
        ([{"way": "rtx", "not here": "x"}, {"way": "cuda", "prompts": {}}], 0),
    ],
)
def test_the_exit_status(
    results: list[dict[str, Any]],
    status: int,
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(results)
    monkeypatch.setattr(gpu_check, "probe_driver", lambda: DEVICE)
    monkeypatch.setattr(gpu_check, "run_apart", lambda way, arguments: next(left))
    monkeypatch.setattr(gpu_check, "say", lambda found: None)
    words = [str(tiny_bundle), "--report", str(tmp_path / "report.json")]
    for result in results:
        words += ["--way", result["way"]]
    assert gpu_check.main(words) == status


def test_a_process_that_dies_is_a_failure(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.CompletedProcess([], -11, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: dead)
    found = gpu_check.run_apart("rtx", gpu_check.parse([str(tiny_bundle)]))
    assert found == {"way": "rtx", "failed": "no message", "status": -11}
