"""What goes wrong outside the program, on a real bundle: one sentence each, and nothing damaged."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lade_edge.runtime import cli

PROGRAM = "import sys; from lade_edge.runtime.cli import main; sys.exit(main(sys.argv[1:]))"


def fingerprint(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_two_processes_use_one_bundle_at_once(tiny_bundle: Path, tmp_path: Path) -> None:
    """Both measure the device, keep the result in one file, and give the same answer."""
    before = fingerprint(tiny_bundle)
    arguments = ["--engine", str(tiny_bundle), "--json", "-n", "20", "--threads", "1", "abc abc"]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert [err for _, err in ended] == ["", ""]
    first, second = (json.loads(out) for out, _ in ended)
    assert first["output_ids"] == second["output_ids"]
    (kept,) = tmp_path.rglob("*.json")
    assert "step_ms" in json.loads(kept.read_text())
    assert fingerprint(tiny_bundle) == before


def test_a_cache_that_cannot_be_allocated_names_its_size_and_the_flag(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zeros = np.zeros

    def refuse(shape: Any, dtype: Any) -> Any:
        if np.prod(shape) > 1000:
            raise MemoryError
        return zeros(shape, dtype)

    with monkeypatch.context() as patch:
        patch.setattr(np, "zeros", refuse)
        code = cli.main(["--engine", str(tiny_bundle), "ab", "--capacity", "100"])
    err = capsys.readouterr().err
    assert code == 1
    assert err.count("\n") == 1
    # 100 slots and 128 scratch rows, 2 layers of keys and values, 2 heads of 16, 4 bytes each
    assert f"takes {228 * 2 * 2 * 2 * 16 * 4 / 1e6:,.0f} MB" in err
    assert "lower --capacity" in err
