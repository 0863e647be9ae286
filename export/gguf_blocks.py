"""The integers and scales of a GGUF file as they are, so that nothing is rounded a second time.

A layer's matrix is recognised by its content: each of its rows is looked up among the rows of the
file's tensors. That undoes whatever a loader did to them on the way (llama files have the rows of
q and k in another order, lowering puts q, k and v side by side) without knowing about it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lade_edge.engines import ExportError
from lade_edge.engines.protocol import Float32Array
from lade_edge.export.quantize_weights import BlockWeights

_Bytes = npt.NDArray[np.uint8]


class GgufWeights:
    """Quantised rows of a GGUF file, found by what they say in float32.

    Args:
        path: The file.

    Raises:
        ExportError: If it can't be read.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        try:
            tensors = GGUFReader(path).tensors
        except Exception as error:  # each kind of damage ends in another type
            raise ExportError(f"{path} can't be read as GGUF: {error}") from error
        self._tensors = [
            t for t in tensors if t.tensor_type.name in _DECODERS and len(t.shape) == 2
        ]
        self._rows: dict[int, tuple[int, int]] | None = None

    def find(self, matrix: Float32Array) -> BlockWeights | None:
        """The stored form of a matrix.

        Args:
            matrix: ``(N, K)``.

        Returns:
            The same matrix in blocks, or None if one of its rows isn't in the file.
        """
        at = [self._index.get(hash(row.tobytes())) for row in np.ascontiguousarray(matrix)]
        places = np.array([place for place in at if place is not None])
        if len(places) != len(matrix):
            return None
        parts: list[tuple[npt.NDArray[np.intp], BlockWeights]] = []
        for number in np.unique(places[:, 0]):
            rows = np.flatnonzero(places[:, 0] == number)
            parts.append((rows, _decode(self._tensors[number], places[rows, 1])))
        found = _joined(parts, len(matrix))
        return found if found.columns == matrix.shape[1] and _equal(found, matrix) else None

    @property
    def _index(self) -> dict[int, tuple[int, int]]:
        """Tensor and row by the hash of the row in float32."""
        if self._rows is None:
            from gguf import dequantize

            self._rows = {}
            for number, tensor in enumerate(self._tensors):
                for start in range(0, len(tensor.data), 4096):
                    part = dequantize(tensor.data[start : start + 4096], tensor.tensor_type)
                    for row, values in enumerate(part.astype(np.float32, copy=False), start):
                        self._rows[hash(values.tobytes())] = number, row
        return self._rows


def _equal(found: BlockWeights, matrix: Float32Array) -> bool:
    """Equal but for the last bits of ``d * q + m`` computed the other way round."""
    difference = np.abs(found.dequantized() - matrix).max(initial=0.0)
    return bool(difference <= 1e-5 * np.abs(matrix).max(initial=0.0))


def _joined(parts: list[tuple[npt.NDArray[np.intp], BlockWeights]], count: int) -> BlockWeights:
    """Rows of several tensors as one matrix, in the form that holds them all."""
    bits = max(weights.bits for _, weights in parts)
    size = min(weights.block_size for _, weights in parts)
    alike = [(rows, weights.rearranged(bits, size)) for rows, weights in parts]
    first = alike[0][1]
    integers = np.empty((count, *first.integers.shape[1:]), np.uint8)
    scales = np.empty((count, first.scales.shape[1]), np.float32)
    offsets = np.zeros_like(scales)
    for rows, weights in alike:
        integers[rows], scales[rows] = weights.integers, weights.scales
        if weights.offsets is not None:
            offsets[rows] = weights.offsets
    return BlockWeights(integers, scales, offsets if offsets.any() else None, bits, first.columns)


@dataclass(frozen=True, slots=True)
class _Decoder:
    """How a tensor type stores its blocks.

    Attributes:
        bits: That hold its integers.
        block_size: Weights in a block, which share a scale.
        decode: From blocks ``(n, bytes)`` to unsigned integers ``(n, weights)``, scales, offsets.
    """

    bits: int
    block_size: int
    decode: Callable[[_Bytes], tuple[_Bytes, Float32Array, Float32Array | None]]


def _decode(tensor: Any, rows: npt.NDArray[np.intp]) -> BlockWeights:
    from gguf import GGML_QUANT_SIZES

    decoder = _DECODERS[tensor.tensor_type.name]
    block_bytes = GGML_QUANT_SIZES[tensor.tensor_type][1]
    blocks = tensor.data[rows].reshape(-1, block_bytes)
    integers, scales, offsets = decoder.decode(blocks)
    count = len(rows)
    return BlockWeights(
        integers.reshape(count, -1, decoder.block_size),
        scales.reshape(count, -1),
        None if offsets is None else offsets.reshape(count, -1),
        decoder.bits,
        int(tensor.shape[0]),
    )


def _half(blocks: _Bytes, at: int) -> Float32Array:
    values: Float32Array = blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)
    return values


def _nibbles(packed: _Bytes) -> _Bytes:
    """32 integers of 16 bytes: all lower halves, then all upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _q4_0(blocks: _Bytes) -> tuple[_Bytes, Float32Array, None]:
    """``d * (q - 8)``."""
    return _nibbles(blocks[:, 2:]), _half(blocks, 0), None


def _q4_1(blocks: _Bytes) -> tuple[_Bytes, Float32Array, Float32Array]:
    """``d * q + m``, that is ``d * (q - 8) + (m + 8 d)``."""
    scales = _half(blocks, 0)
    return _nibbles(blocks[:, 4:]), scales, _half(blocks, 2) + 8 * scales


def _q8_0(blocks: _Bytes) -> tuple[_Bytes, Float32Array, None]:
    """``d * q`` with a signed q."""
    return blocks[:, 2:] ^ np.uint8(128), _half(blocks, 0), None


def _q4_k(blocks: _Bytes) -> tuple[_Bytes, Float32Array, Float32Array]:
    """Eight blocks of 32 below one pair of scales: ``d s * q - m t``, s and t of six bits."""
    packed = blocks[:, 4:16]
    low, high, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    steps = np.concatenate([low & 63, (mixed & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([high & 63, (mixed >> 4) | (high >> 6 << 4)], axis=1)
    scales = _half(blocks, 0) * steps
    pairs = blocks[:, 16:].reshape(-1, 4, 32)
    integers = np.stack([pairs & 15, pairs >> 4], axis=2).reshape(len(blocks), -1)
    return integers, scales, 8 * scales - _half(blocks, 2) * minima


def _q6_k(blocks: _Bytes) -> tuple[_Bytes, Float32Array, None]:
    """Sixteen blocks of 16 below one scale: ``d s * (q - 32)``, s signed, q of six bits."""
    lower = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8)[:, None]
    upper = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    low, high = (lower & 15).reshape(len(blocks), -1), (upper & 3).reshape(len(blocks), -1)
    integers: _Bytes = low | (high << np.uint8(4))
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * _half(blocks, 208)
    return integers + np.uint8(128 - 32), scales, None


_DECODERS = {
    "Q4_0": _Decoder(4, 32, _q4_0),
    "Q4_1": _Decoder(4, 32, _q4_1),
    "Q8_0": _Decoder(8, 32, _q8_0),
    "Q4_K": _Decoder(4, 32, _q4_k),
    "Q6_K": _Decoder(8, 16, _q6_k),
}
