"""The driver probe: in a process of its own on this machine, and against drivers that answer oddly."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lade_edge.engines.cuda_driver import Device, probe_driver


class FakeDriver:
    """Calls of ``libcuda`` that write what they are told."""

    def __init__(self, *, status: int = 0, count: int = 1, version: int = 12060) -> None:
        self._status, self._count, self._version = status, count, version

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self._status

    def cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self._version
        return 0

    def cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self._count
        return 0

    def cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        return 0

    def cuDeviceGetName(self, out: Any, size: int, handle: Any) -> int:  # noqa: N802
        ctypes.memmove(out, b"Orin\0", 5)
        return 0

    def cuDeviceTotalMem_v2(self, out: Any, handle: Any) -> int:  # noqa: N802
        out._obj.value = 8 << 30
        return 0

    def cuDeviceGetAttribute(self, out: Any, attribute: int, handle: Any) -> int:  # noqa: N802
        out._obj.value = {75: 8, 76: 7, 18: 1}[attribute]
        return 0


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def test_a_device() -> None:
    found = probe_driver(lambda name: FakeDriver())
    assert found.version == "12.6"
    device = Device(name="Orin", compute_capability="8.7", memory_bytes=8 << 30, integrated=True)
    assert found.devices == (device,)
    assert not found.reason


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (missing, "no NVIDIA driver is installed (libcuda.so.1 is not there)"),
        (lambda name: FakeDriver(status=100), "the NVIDIA driver is there but finds no device"),
        (lambda name: FakeDriver(count=0), "the NVIDIA driver is there but finds no device"),
        (lambda name: FakeDriver(status=803), "the NVIDIA driver can't start (CUDA error 803)"),
        (lambda name: object(), "is not a CUDA driver"),
    ],
)
def test_reasons(load: Any, reason: str) -> None:
    found = probe_driver(load)
    assert found.devices == ()
    assert reason in found.reason


def test_the_real_probe_never_crashes() -> None:
    script = (
        "from lade_edge.engines.cuda_driver import probe_driver as p; d = p(); "
        "print(len(d.devices), d.reason)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("0 ") == ("driver" in ended.stdout)


def test_nothing_of_ours_asks_the_management_library() -> None:
    """NVML fails where CUDA works: a Jetson's answer to it is an assertion."""
    root = Path(__file__).resolve().parents[2]
    sources = [
        path for name in ("engines", "export", "runtime") for path in (root / name).rglob("*.py")
    ]
    assert len(sources) > 100
    assert [path for path in sources if "nvml" in path.read_text(encoding="utf-8").lower()] == []
    assert "nvml" not in (root / "pyproject.toml").read_text(encoding="utf-8").lower()
