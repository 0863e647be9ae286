"""Fingerprints of plans: what differs is said before anything is deserialised, with the way out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_tensorrt import FakeCudaApi, fake_library
from lade_edge.engines import EngineError, ManifestError, open_bundle, open_engine
from lade_edge.engines.cuda_driver import Device, Driver
from lade_edge.engines.inspect_cli import describe
from lade_edge.engines.plan import _digest as content_digest
from lade_edge.engines.plan import fingerprint_path, read_plan_record
from lade_edge.engines.plan_check import check_device, check_version
from plans import make_plan, open_fake


@pytest.fixture
def plan(tiny_bundle: Path, tmp_path: Path) -> Path:
    return make_plan(tiny_bundle / "model.onnx", tmp_path / "plan", "rows")


def test_it_comes_back_as_it_was(plan: Path) -> None:
    record = read_plan_record(plan)
    assert (record.form, record.float_type, record.step_width) == ("rows", "float32", 16)
    assert open_bundle(plan).manifest.capacity == 100
    assert open_bundle(plan).graph.target == "tensorrt"


def test_a_plan_without_fingerprint(plan: Path) -> None:
    fingerprint_path(plan).unlink()
    with pytest.raises(
        ManifestError, match=r"no tiny\.plan\.json beside it; expected a plan made by"
    ):
        open_bundle(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 4000}, "was changed after the build"),
        ({"schema": 7}, "has schema version 7, this lade reads 1"),
    ],
)
def test_a_changed_fingerprint(change: dict[str, Any], message: str, plan: Path) -> None:
    path = fingerprint_path(plan)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError, match=message):
        open_bundle(plan)
    path.write_text("{")
    with pytest.raises(ManifestError, match="can't be read"):
        open_bundle(plan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buckets": [{"width": 32, "rows": 1}]}, "no bucket for steps"),
        ({"self_test": {"prompt": [1], "ids": [10**30] * 32, "margins": [0.1] * 32}}, "is none of"),
        ({"self_test": {"prompt": [-1], "ids": [1] * 32, "margins": [0.1] * 32}}, "-1 is none of"),
        (
            {"self_test": {"prompt": [1], "ids": [1] * 32, "margins": [10**400] * 32}},
            "not a finite",
        ),
    ],
)
def test_numbers_that_no_plan_has(change: dict[str, Any], message: str, plan: Path) -> None:
    """With a digest that fits, as somebody would write who edits a fingerprint."""
    path = fingerprint_path(plan)
    content = json.loads(path.read_text()) | change
    content.pop("digest")
    content["digest"] = content_digest(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=message):
        open_bundle(plan)


@pytest.mark.parametrize("name", ["x" * 300, f"{'x' * 300}.plan", f"{'x' * 300}.onnx"])
def test_names_that_no_file_can_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="can't be looked at"):
        describe(tmp_path / name)


def test_a_damaged_plan(plan: Path) -> None:
    content = plan.read_bytes()
    plan.write_bytes(content[:-1])
    with pytest.raises(ManifestError, match=r"is \d+ bytes, its fingerprint says \d+; copy both"):
        open_bundle(plan)
    plan.write_bytes(content[:-1] + b"!")
    with pytest.raises(ManifestError, match=r"sha256 differs.*lade-export .*model\.onnx -o"):
        open_bundle(plan)


def test_another_version(plan: Path) -> None:
    other = fake_library(FakeCudaApi(), version="10.3.0")
    with pytest.raises(
        EngineError,
        match=r"built with TensorRT 10\.9\.0, this machine has 10\.3\.0; build it again here: "
        r"lade-export .*/model\.onnx -o .*/tiny\.plan --capacity 100 --overwrite",
    ):
        open_fake(plan, library=other, driver=pytest.fail)


def test_another_device(plan: Path) -> None:
    device = Device(name="x", compute_capability="8.6", memory_bytes=1, integrated=False)
    with pytest.raises(EngineError, match=r"capability 8\.7, this device has 8\.6; build it again"):
        open_fake(plan, driver=lambda: Driver(devices=(device,)))


def test_no_driver_is_told_before_the_library_is_used(plan: Path) -> None:
    untouched: Any = lambda flavour: fake_library(FakeCudaApi())(flavour)  # noqa: E731
    no_driver = Driver(reason="no NVIDIA driver is installed (libcuda.so.1 is not there)")
    with pytest.raises(EngineError, match="can't be run: no NVIDIA driver is installed"):
        open_fake(plan, library=untouched, driver=lambda: no_driver, cuda=pytest.fail)


def test_a_missing_library(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(EngineError, match=r"TensorRT is not installed \(on a Jetson it comes with"):
        open_engine(open_bundle(plan))


@pytest.mark.parametrize(
    ("changes", "version", "fits"),
    [
        ({}, "10.9.0", True),
        ({}, "10.10.0", False),
        ({"version_compatible": True}, "10.10.0", True),
        ({"version_compatible": True}, "10.8.0", False),
        ({"version_compatible": True}, "11.0.0", False),
    ],
)
def test_versions(
    changes: dict[str, Any], version: str, fits: bool, tiny_bundle: Path, tmp_path: Path
) -> None:
    plan = make_plan(tiny_bundle / "model.onnx", tmp_path, "rows", **changes)
    record = read_plan_record(plan)
    if fits:
        check_version(record, plan, version)
    else:
        with pytest.raises(EngineError, match="build it again here"):
            check_version(record, plan, version)


@pytest.mark.parametrize(
    ("changes", "device", "message"),
    [
        ({}, "8.7", None),
        ({"forward_compatible": True}, "12.0", None),
        ({"forward_compatible": True}, "7.5", "built for compute capability 8.7"),
        ({"flavour": "tensorrt_rtx", "compute_capabilities": ()}, "8.9", None),
        (
            {"flavour": "tensorrt_rtx", "compute_capabilities": ("8.6", "8.9")},
            "12.0",
            "built for compute capability 8.6 and 8.9, this device has 12.0.*--device sm120 --over",
        ),
    ],
)
def test_devices(
    changes: dict[str, Any], device: str, message: str | None, tiny_bundle: Path, tmp_path: Path
) -> None:
    plan = make_plan(tiny_bundle / "model.onnx", tmp_path, "rows", **changes)
    record = read_plan_record(plan)
    if message is None:
        check_device(record, plan, device)
    else:
        with pytest.raises(EngineError, match=message):
            check_device(record, plan, device)
