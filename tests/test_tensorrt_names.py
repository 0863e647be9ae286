"""The names we call exist in TensorRT 10.3, 10.16, 11.4 and TensorRT-RTX. Names only, no behaviour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lade_edge.engines.tensorrt_names import DETECTED, REQUIRED
from test_tensorrt_rtx import RTX

ROOT = Path(__file__).resolve().parents[1]
BINDINGS = Path(os.environ.get("LADE_TENSORRT_BINDINGS", ROOT / ".cache" / "tensorrt-bindings"))
LOOK_UP = """
import functools, importlib, json, sys
module = importlib.import_module(sys.argv[1])
def there(name):
    try:
        functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        return False
    return True
print(json.dumps([name for name in json.loads(sys.argv[2]) if there(name)]))
"""
REFIT = {"BuilderFlag.REFIT_IDENTICAL", *(n for n in DETECTED if "Refitter" in n)}
IN_PLACE = {"INetworkDefinition.add_attention", "INetworkDefinition.add_kv_cache_update"}


def found_in(python: str, module: str, folder: Path | None = None) -> set[str]:
    environment = dict(os.environ)
    if folder is not None:
        environment |= {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(folder)}
    names = json.dumps(REQUIRED + DETECTED)
    ended = subprocess.run(
        [python, "-c", LOOK_UP, module, names],
        capture_output=True, text=True, timeout=60, check=False, env=environment,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize(
    ("version", "in_place"), [("10.3.0", False), ("10.16.1.11", True), ("11.4.0.106", True)]
)
def test_bindings(version: str, in_place: bool) -> None:
    folder = BINDINGS / version
    if not (folder / "done").exists():
        pytest.skip(f"no bindings in {folder}; tools/tensorrt_bindings.sh fetches them")
    found = found_in(sys.executable, "tensorrt_bindings", folder)
    assert set(REQUIRED) - found == set()
    assert (found >= IN_PLACE) == in_place
    assert len(REFIT) == 6 and found >= REFIT
    assert "ComputeCapability.SM86" not in found


def test_rtx() -> None:
    if not RTX.exists():
        pytest.skip(f"{RTX} is missing; tools/test.sh makes it where tensorrt-rtx can be installed")
    found = found_in(str(RTX), "tensorrt_rtx")
    assert set(REQUIRED) - found == set()
    assert found >= IN_PLACE | {"ComputeCapability.SM86", "IAttentionInputLayer.attention"}
