"""A step's small tensors packed into one block, so that one copy takes them all to the device or back."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lade_edge.engines.cuda_runtime import CudaRuntime

ALIGNMENT = 256  # bytes; what TensorRT asks of a tensor's address


class Place(NamedTuple):
    """Where a tensor lies in the block.

    Attributes:
        offset: In bytes.
        shape: Of the tensor.
        dtype: Of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def lay_out(
    tensors: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]],
) -> tuple[dict[str, Place], int]:
    """Places of the tensors, each aligned, and the size of the block in bytes."""
    places: dict[str, Place] = {}
    end = 0
    for name, (shape, kind) in tensors.items():
        dtype = np.dtype(kind)
        places[name] = Place(end, shape, dtype)
        end += -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    return places, end


class StepArena:
    """One block on the device and its image in pinned host memory.

    Args:
        cuda: Runtime that owns both.
        tensors: Shape and element type per name.

    Attributes:
        host: Views of the image, by name.
        address: Device addresses, by name.
    """

    def __init__(
        self, cuda: CudaRuntime, tensors: Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
    ) -> None:
        self._cuda = cuda
        places, self.num_bytes = lay_out(tensors)
        self._device = cuda.allocate(self.num_bytes, "a step's inputs and outputs")
        self._image = cuda.allocate_host(self.num_bytes)
        buffer = memoryview((ctypes.c_byte * max(self.num_bytes, 1)).from_address(self._image))
        ctypes.memset(self._image, 0, self.num_bytes)
        self.address = {name: self._device + place.offset for name, place in places.items()}
        self.host: dict[str, npt.NDArray[Any]] = {
            name: np.frombuffer(buffer, place.dtype, math.prod(place.shape), place.offset).reshape(
                place.shape
            )
            for name, place in places.items()
        }

    def upload(self) -> None:
        """Queue the copy of the whole block to the device."""
        self._cuda.upload(self._device, self._image, self.num_bytes)

    def download(self) -> None:
        """Queue the copy of the whole block to the host."""
        self._cuda.download(self._image, self._device, self.num_bytes)
