"""What this machine can run and why not: one finding per thing that is asked for.

Nothing here loads a model or makes a runtime object; libraries are imported, the driver is asked.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any

from lade_edge.engines.cuda_driver import Driver, probe_driver
from lade_edge.engines.errors import EngineError
from lade_edge.engines.tensorrt_library import TensorRTLibrary, import_tensorrt

GOOD, MISSING, BAD = "ok", "-", "!"
_RELEASE_FILE = Path("/etc/nv_tegra_release")
_JETPACK = {"R36": "6", "R38": "7", "R35": "5", "R32": "4"}
# compute capabilities that the onnxruntime-gpu wheels for aarch64 hold kernels of (1.31)
_AARCH64_KERNELS = ("8.9", "9.0", "12.0", "12.1")
_PROVIDER_TENSORRT = "10"  # major version that ONNX Runtime's TensorRT provider links


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table.

    Attributes:
        state: `GOOD`, `MISSING` (can't be used, nothing wrong) or `BAD` (to be mended).
        name: What was looked at.
        detail: What was found, and what to do.
    """

    state: str
    name: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the checks look at, so that tests can put another machine in its place.

    Attributes:
        packages: Installed distributions by normalised name.
        driver: What the driver says.
        tensorrt: Imports a flavour.
        providers: Providers that onnxruntime claims, None if it can't be imported.
        arch: For example ``x86_64`` or ``aarch64``.
        meminfo: ``/proc/meminfo`` as text, empty where there is none.
        tegra: First line of ``/etc/nv_tegra_release``, empty on anything but a Jetson.
    """

    packages: dict[str, str]
    driver: Driver
    tensorrt: Callable[[str], TensorRTLibrary]
    providers: tuple[str, ...] | None
    arch: str
    meminfo: str
    tegra: str


def this_machine() -> Machine:
    """The machine this runs on."""
    return Machine(
        packages={
            name.lower().replace("_", "-"): dist.version
            for dist in distributions()
            if (name := dist.metadata["Name"])
        },
        driver=probe_driver(),
        tensorrt=import_tensorrt,
        providers=_providers(),
        arch=platform.machine(),
        meminfo=_read(Path("/proc/meminfo")),
        tegra=_read(_RELEASE_FILE).partition("\n")[0],
    )


def examine(machine: Machine) -> list[Finding]:
    """All findings, in the order of the table."""
    return [
        *_python(),
        *_memory(machine),
        *_jetson(machine),
        _driver(machine.driver),
        *_onnxruntime(machine),
        *(_tensorrt(machine, flavour) for flavour in ("tensorrt", "tensorrt_rtx")),
        _cuda_python(),
        *_combinations(machine),
    ]


def _python() -> Iterable[Finding]:
    found = platform.python_version()
    fits = (3, 10) <= sys.version_info[:2] < (3, 14)
    where = f"{found}, {platform.system()} {platform.machine()}"
    yield Finding(
        GOOD if fits else BAD, "Python", where if fits else f"{where}; expected 3.10 to 3.13"
    )
    try:
        yield Finding(GOOD, "lade", version("lade-edge"))
    except PackageNotFoundError:
        yield Finding(BAD, "lade", "runs from its sources and isn't installed; pip install .")


def _memory(machine: Machine) -> Iterable[Finding]:
    sizes = {}
    for line in machine.meminfo.splitlines():
        name, _, rest = line.partition(":")
        if rest.split()[1:] == ["kB"]:
            sizes[name] = int(rest.split()[0]) * 1024
    if "MemTotal" not in sizes:
        yield Finding(MISSING, "memory", "the system doesn't say")
        return
    total, free, swap = (
        sizes.get(name, 0) / 1e9 for name in ("MemTotal", "MemAvailable", "SwapTotal")
    )
    cores = os.cpu_count() or 1
    text = f"{total:.1f} GB, {free:.1f} GB available, swap {swap:.1f} GB; {cores} processors"
    yield Finding(GOOD, "memory", text)


def _jetson(machine: Machine) -> Iterable[Finding]:
    if machine.tegra:
        release = machine.tegra.removeprefix("# ").split()[0]
        pack = _JETPACK.get(release)
        detail = f"JetPack {pack} ({release})" if pack else f"Jetson Linux {release}"
        yield Finding(GOOD, "Jetson", detail)


def _driver(driver: Driver) -> Finding:
    if not driver.devices:
        return Finding(MISSING, "CUDA device", f"{driver.reason}; the CPU can be used")
    devices = [
        f"{d.name} (compute capability {d.compute_capability}, {d.memory_bytes / 1e9:.1f} GB"
        f"{' shared' if d.integrated else ''})"
        for d in driver.devices
    ]
    return Finding(GOOD, "CUDA device", f"{', '.join(devices)}; driver for CUDA {driver.version}")


def _onnxruntime(machine: Machine) -> Iterable[Finding]:
    wheels = _onnxruntime_wheels(machine)
    if machine.providers is None:
        advice = "pip install 'lade-edge[cpu]'"
        detail = (
            f"installed ({', '.join(wheels)}) but can't be imported" if wheels else "not installed"
        )
        yield Finding(BAD if wheels else MISSING, "ONNX Runtime", f"{detail}; {advice}")
        return
    yield Finding(GOOD, "ONNX Runtime", ", ".join(wheels) or "of unknown origin")
    yield Finding(GOOD, "  on the CPU", "yes")
    for name, provider in (
        ("CUDA", "CUDAExecutionProvider"),
        ("TensorRT", "TensorrtExecutionProvider"),
    ):
        if provider not in machine.providers:
            detail = "this wheel has no such provider (onnxruntime-gpu has)"
        elif not machine.driver.devices:
            detail = f"claimed, but {machine.driver.reason}"
        else:
            detail = "claimed; whether its libraries are there shows when a session is opened"
        usable = provider in machine.providers and bool(machine.driver.devices)
        yield Finding(GOOD if usable else MISSING, f"  with {name}", detail)


def _tensorrt(machine: Machine, flavour: str) -> Finding:
    name = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}[flavour]
    try:
        library = machine.tensorrt(flavour)
    except EngineError as error:
        return Finding(MISSING, name, str(error).removeprefix(f"{name} "))
    network = getattr(library.module, "INetworkDefinition", None)
    form = "in-place cache layers" if hasattr(network, "add_kv_cache_update") else "rows form"
    if machine.driver.devices:
        return Finding(GOOD, name, f"{library.version}, {form}; builds and runs plans")
    can = "builds plans, can't run them" if library.is_rtx else "can't be used"
    state = GOOD if library.is_rtx else MISSING
    return Finding(state, name, f"{library.version}, {form}; {can}: {machine.driver.reason}")


def _cuda_python() -> Finding:
    try:
        found = importlib.util.find_spec("cuda.bindings.runtime")
    except ModuleNotFoundError:
        found = None
    if found is None:
        return Finding(MISSING, "cuda-python", "not installed; running plans needs it")
    return Finding(GOOD, "cuda-python", "installed")


def _combinations(machine: Machine) -> Iterable[Finding]:
    """Known bad ones, each with the way out."""
    wheels = _onnxruntime_wheels(machine)
    if len(wheels) > 1:
        yield Finding(
            BAD, "two wheels",
            f"{' and '.join(wheels)} own one folder and overwrite each other; pip uninstall all of "
            "them, then install one",
        )  # fmt: skip
    provider = machine.providers is not None and "TensorrtExecutionProvider" in machine.providers
    tensorrt = next(
        (machine.packages[n] for n in ("tensorrt", "tensorrt-cu12", "tensorrt-cu13")
         if n in machine.packages), "",
    )  # fmt: skip
    if provider and tensorrt and tensorrt.partition(".")[0] != _PROVIDER_TENSORRT:
        yield Finding(
            BAD, "two TensorRTs",
            f"TensorRT {tensorrt} is installed and ONNX Runtime's TensorRT provider links version "
            f"{_PROVIDER_TENSORRT}; use plans, or the CUDA provider",
        )  # fmt: skip
    capabilities = [device.compute_capability for device in machine.driver.devices]
    if machine.arch == "aarch64" and "onnxruntime-gpu" in machine.packages:
        for capability in capabilities:
            if capability not in _AARCH64_KERNELS:
                yield Finding(
                    BAD, "no kernels",
                    f"onnxruntime-gpu's wheel for aarch64 has none for compute capability "
                    f"{capability}; use a TensorRT plan",
                )  # fmt: skip


def _onnxruntime_wheels(machine: Machine) -> list[str]:
    return [
        f"{name} {number}"
        for name, number in sorted(machine.packages.items())
        if name == "onnxruntime" or (name.startswith("onnxruntime-") and "genai" not in name)
    ]


def _providers() -> tuple[str, ...] | None:
    try:
        library: Any = importlib.import_module("onnxruntime")
        return tuple(library.get_available_providers())
    except (ImportError, AttributeError, OSError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
