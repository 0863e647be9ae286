"""Is there an NVIDIA driver with a device? Asked of the driver itself, before any library that crashes.

TensorRT's runtimes made without a driver return an object that ends the process when it is touched,
so nothing of theirs is made before this says that a device is there.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libcuda.so.1"
_NO_DEVICE = 100
_MAJOR, _MINOR, _INTEGRATED = 75, 76, 18  # CUdevice_attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One CUDA device.

    Attributes:
        name: As the driver names it.
        compute_capability: For example ``8.7``.
        memory_bytes: Its memory; that of the machine where it is shared.
        integrated: It shares the machine's memory, as on a Jetson.
    """

    name: str
    compute_capability: str
    memory_bytes: int
    integrated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What the driver says.

    Attributes:
        version: Newest CUDA version it serves, ``major.minor``; empty without a driver.
        devices: Devices, the one that is used first.
        reason: Why there is none, as the middle of a sentence; empty where there is one.
    """

    version: str = ""
    devices: tuple[Device, ...] = ()
    reason: str = ""


def probe_driver(load: Any = ctypes.CDLL) -> Driver:
    """Ask the driver; never raises.

    Args:
        load: Loads a shared library by name.
    """
    try:
        cuda = load(_LIBRARY)
    except OSError:
        return Driver(reason=f"no NVIDIA driver is installed ({_LIBRARY} is not there)")
    try:
        return _ask(cuda)
    except AttributeError as error:
        return Driver(reason=f"{_LIBRARY} is not a CUDA driver ({error})")


def _ask(cuda: Any) -> Driver:
    status = int(cuda.cuInit(0))
    number = _number(cuda.cuDriverGetVersion)
    version = f"{number // 1000}.{number % 1000 // 10}" if number > 0 else ""
    if status == _NO_DEVICE:
        return Driver(version=version, reason="the NVIDIA driver is there but finds no device")
    if status:
        return Driver(
            version=version, reason=f"the NVIDIA driver can't start (CUDA error {status})"
        )
    count = max(_number(cuda.cuDeviceGetCount), 0)
    if not count:
        return Driver(version=version, reason="the NVIDIA driver is there but finds no device")
    return Driver(version=version, devices=tuple(_device(cuda, i) for i in range(count)))


def _device(cuda: Any, index: int) -> Device:
    handle = ctypes.c_int(index)
    cuda.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), handle)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    major, minor, integrated = (
        _number(cuda.cuDeviceGetAttribute, attribute, handle)
        for attribute in (_MAJOR, _MINOR, _INTEGRATED)
    )
    return Device(
        name=name.value.decode(errors="replace"),
        compute_capability=f"{major}.{minor}",
        memory_bytes=memory.value,
        integrated=bool(integrated),
    )


def _number(function: Any, *arguments: Any) -> int:
    """The integer a driver call writes, or -1 after an error."""
    out = ctypes.c_int()
    return -1 if function(ctypes.byref(out), *arguments) else out.value
