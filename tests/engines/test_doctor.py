from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from lade_edge.engines.cuda_driver import Device, Driver
from lade_edge.engines.doctor import BAD, GOOD, MISSING, Finding, Machine, examine
from lade_edge.engines.doctor_cli import main, table
from lade_edge.engines.errors import EngineError
from lade_edge.engines.tensorrt_library import TensorRTLibrary

NO_DRIVER = Driver(reason="no NVIDIA driver is installed (libcuda.so.1 is not there)")


def orin() -> Driver:
    device = Device(name="Orin", compute_capability="8.7", memory_bytes=8 << 30, integrated=True)
    return Driver(version="12.6", devices=(device,))


def no_library(flavour: str) -> TensorRTLibrary:
    raise EngineError(f"{flavour} is not installed")


def library(flavour: str) -> TensorRTLibrary:
    module = SimpleNamespace(INetworkDefinition=SimpleNamespace())
    return TensorRTLibrary(module, flavour, "10.3.0")


PLAIN = Machine(
    packages={"onnxruntime": "1.32.0"},
    driver=NO_DRIVER,
    tensorrt=no_library,
    providers=("CPUExecutionProvider",),
    arch="x86_64",
    meminfo="MemTotal: 8000000 kB\nMemAvailable: 5000000 kB\nHugePages_Total: 0\nSwapTotal: 0 kB\n",
    tegra="",
)


def look(**changes: Any) -> dict[str, Finding]:
    return {finding.name.strip(): finding for finding in examine(replace(PLAIN, **changes))}


def test_a_plain_machine_runs_on_its_cpu() -> None:
    found = look()
    assert found["on the CPU"].state == GOOD
    assert found["CUDA device"].state == MISSING
    assert "no NVIDIA driver" in found["CUDA device"].detail
    assert found["memory"].detail.startswith("8.2 GB, 5.1 GB available, swap 0.0 GB")
    assert not [finding for finding in found.values() if finding.state == BAD]


def test_a_jetson() -> None:
    found = look(
        arch="aarch64", driver=orin(), tegra="# R36 (release), REVISION: 4.3", tensorrt=library
    )
    assert found["Jetson"].detail == "JetPack 6 (R36)"
    assert "Orin (compute capability 8.7, 8.6 GB shared); driver for CUDA 12.6" in (
        found["CUDA device"].detail
    )
    assert found["TensorRT"].detail == "10.3.0, rows form; builds and runs plans"


def test_without_a_driver_rtx_builds_and_tensorrt_does_nothing() -> None:
    found = look(tensorrt=library)
    assert found["TensorRT"].state == MISSING
    assert "can't be used: no NVIDIA driver" in found["TensorRT"].detail
    assert "builds plans, can't run them" in found["TensorRT-RTX"].detail


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        (
            {"packages": {"onnxruntime": "1.32.0", "onnxruntime-gpu": "1.31.1"}},
            "two wheels",
            "onnxruntime 1.32.0 and onnxruntime-gpu 1.31.1 own one folder",
        ),
        (
            {
                "packages": {"onnxruntime-gpu": "1.31.1", "tensorrt": "11.4.0"},
                "providers": ("TensorrtExecutionProvider",),
            },
            "two TensorRTs",
            "TensorRT 11.4.0 is installed and ONNX Runtime's TensorRT provider links version 10",
        ),
        (
            {"packages": {"onnxruntime-gpu": "1.31.1"}, "arch": "aarch64", "driver": orin()},
            "no kernels",
            "none for compute capability 8.7; use a TensorRT plan",
        ),
        ({"providers": None}, "ONNX Runtime", "can't be imported"),
    ],
)
def test_bad_combinations(changes: dict[str, Any], name: str, message: str) -> None:
    finding = look(**changes)[name]
    assert finding.state == BAD
    assert message in finding.detail


def test_a_claimed_provider_is_not_taken_for_one() -> None:
    found = look(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert found["with CUDA"].state == MISSING
    assert "claimed, but no NVIDIA driver" in found["with CUDA"].detail


def test_the_command_on_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([]) == 0
    assert "on the CPU" in capsys.readouterr().out
    assert main(["--json"]) == 0
    assert {f["name"] for f in json.loads(capsys.readouterr().out)} >= {"Python", "CUDA device"}
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert main([]) == 1
    assert "can't be imported" in capsys.readouterr().err


def test_the_table_is_aligned() -> None:
    lines = table([Finding(GOOD, "a", "x"), Finding(BAD, "longer", "y")])
    assert lines == ["ok  a       x", "!   longer  y"]


def test_providers_devices_and_wheels_are_listed() -> None:
    """What decides whether a GPU can be used is on the table before anything is launched."""
    found = look(
        packages={"onnxruntime-gpu": "1.31.1", "numpy": "2.0"},
        driver=orin(),
        providers=("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
    )
    assert found["ONNX Runtime"].detail == "onnxruntime-gpu 1.31.1"
    assert [found[name].state for name in ("on the CPU", "with CUDA", "with TensorRT")] == [
        GOOD
    ] * 3
    assert "compute capability 8.7" in found["CUDA device"].detail
    plain = look(driver=orin())
    assert plain["with CUDA"].detail == "this wheel has no such provider (onnxruntime-gpu has)"
    assert look(packages={})["ONNX Runtime"].detail == "of unknown origin"
