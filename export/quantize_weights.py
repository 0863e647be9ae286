"""Weights as small integers: per column for row-wise int8, in blocks along K for MatMulNBits.

Eight bits are symmetric: a weight is its integer times a scale. Four bits are few enough for a block's
middle to matter: there an offset comes on top.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lade_edge.engines.protocol import Float32Array

Int8Array = npt.NDArray[np.int8]
UInt8Array = npt.NDArray[np.uint8]

_INT8_MAX = 127
_DAMPING = 0.01  # of the mean second moment, added to each: keeps the inverse tame
_SHRINK = np.linspace(1.0, 0.7, 13, dtype=np.float32)  # scales tried, as shares of the largest


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """A matrix ``(N, K)`` in blocks of ``block_size`` along K.

    Weight = scale * (integer - 2^(bits - 1)) + offset.

    Attributes:
        integers: ``(N, blocks, block_size)`` uint8, below ``2^bits``; padded where K ends earlier.
        scales: ``(N, blocks)`` float32.
        offsets: ``(N, blocks)`` float32, or None where all are 0.
        bits: 4 or 8.
        columns: K.
    """

    integers: UInt8Array
    scales: Float32Array
    offsets: Float32Array | None
    bits: int
    columns: int

    @property
    def block_size(self) -> int:
        """Weights that share a scale."""
        return int(self.integers.shape[2])

    def packed(self) -> UInt8Array:
        """``(N, blocks, block_size * bits / 8)``: for 4 bits two in a byte, the lower ones first."""
        if self.bits == 8:
            return self.integers
        packed: UInt8Array = self.integers[..., 0::2] | (self.integers[..., 1::2] << np.uint8(4))
        return packed

    def dequantized(self) -> Float32Array:
        """``(N, K)`` float32."""
        values = self.integers.astype(np.float32) - np.float32(1 << (self.bits - 1))
        values *= self.scales[..., None]
        if self.offsets is not None:
            values += self.offsets[..., None]
        flat: Float32Array = values.reshape(len(values), -1)[:, : self.columns]
        return flat

    def rearranged(self, bits: int, block_size: int) -> BlockWeights:
        """The same weights with more bits or shorter blocks.

        Args:
            bits: 4 or 8, at least the present ones.
            block_size: A divisor of the present one.
        """
        if bits < self.bits or self.block_size % block_size:
            raise ValueError("only more bits and shorter blocks hold the same weights")
        parts = self.block_size // block_size
        shift = (1 << (bits - 1)) - (1 << (self.bits - 1))
        integers = self.integers.reshape(len(self.integers), -1, block_size) + np.uint8(shift)
        offsets = None if self.offsets is None else np.repeat(self.offsets, parts, axis=1)
        return BlockWeights(
            integers, np.repeat(self.scales, parts, axis=1), offsets, bits, self.columns
        )


def quantize_columns(
    matrix: Float32Array, *, exact_in_half: bool = False
) -> tuple[Int8Array, Float32Array]:
    """Round each column to int8 with a scale of its own.

    Args:
        matrix: ``(K, N)``.
        exact_in_half: Only scales that float16 holds, all above 0.

    Returns:
        Integers ``(K, N)`` from -127 to 127 and scales ``(N,)``; a column of zeros has scale 0.
    """
    scales = (np.abs(matrix).max(axis=0) / _INT8_MAX).astype(np.float32)
    scales = _next_half(scales) if exact_in_half else scales
    divisor = np.where(scales > 0, scales, np.float32(1))
    integers = np.clip(np.rint(matrix / divisor), -_INT8_MAX, _INT8_MAX).astype(np.int8)
    return integers, scales


def rounding_error(rows: Float32Array, matrix: Float32Array) -> float:
    """What row-wise int8 does to a product: mean squared error over a usual row's squared result.

    Usual, because the first token of a text may have a result a thousand times as large, behind
    which its error would vanish. It doesn't vanish in the model: all later tokens attend to the first.

    Args:
        rows: ``(n, K)``, rounded with a scale for each row.
        matrix: ``(K, N)``, rounded with a scale for each column.
    """
    steps = np.abs(rows).max(axis=1, keepdims=True) / _INT8_MAX
    steps[steps == 0] = 1
    integers, scales = quantize_columns(matrix)
    of_rows = (np.rint(rows / steps) * steps - rows) @ matrix
    of_matrix = rows @ (integers * scales - matrix)
    squares = np.square(of_rows).sum(axis=1) + np.square(of_matrix).sum(axis=1)
    usual = np.median(np.square(rows @ matrix).sum(axis=1))
    return float(squares.mean() / max(usual, 1e-30))


def round_blocks(matrix: Float32Array, bits: int, block_size: int) -> BlockWeights:
    """Round to nearest, the largest magnitude of a block on the end of the range.

    Args:
        matrix: ``(N, K)``.
        bits: 4 or 8.
        block_size: Weights along K that share a scale.
    """
    blocks = _in_blocks(matrix, block_size)
    scales = _full_range_scales(blocks, bits)
    integers = _nearest(blocks, scales[..., None], bits)
    return BlockWeights(_stored(integers, bits), scales, None, bits, matrix.shape[1])


def quantize_blocks(
    matrix: Float32Array,
    moments: Float32Array,
    bits: int,
    block_size: int,
    *,
    symmetric: bool = False,
) -> BlockWeights:
    """Round so that products with what the layer really reads change least (GPTQ).

    Columns are rounded one after the other, and each rounding error is made up for by the columns
    still to come, weighed by the inputs' second moments; a block's range, scale and offset, is the
    one of a few whose weighted square error is least. Frantar et al., 2022, arXiv:2210.17323.

    Args:
        matrix: ``(N, K)``.
        moments: ``(K, K)`` float32, mean of ``x x^T`` over the layer's inputs.
        bits: 4 or 8.
        block_size: Weights along K that share a scale.
        symmetric: No offsets, and scales above 0 that float16 holds: what TensorRT takes.
    """
    count = matrix.shape[1]
    weights = np.array(matrix, np.float32)
    inverse = _inverse_factor(moments)
    importance = np.diagonal(moments)
    integers = np.zeros((len(weights), _padded(count, block_size)), np.float32)
    scales = np.zeros((len(weights), integers.shape[1] // block_size), np.float32)
    offsets = np.zeros_like(scales)
    for start in range(0, count, block_size):
        end = min(start + block_size, count)
        part = weights[:, start:end]
        scale, offset = _best_range(part, importance[start:end], bits, symmetric=symmetric)
        scales[:, start // block_size], offsets[:, start // block_size] = scale, offset
        errors = np.zeros_like(part)
        for column in range(start, end):
            at = column - start
            rounded = _nearest(part[:, at] - offset, scale, bits)
            integers[:, column] = rounded
            errors[:, at] = (part[:, at] - rounded * scale - offset) / inverse[column, column]
            part[:, at + 1 :] -= np.outer(errors[:, at], inverse[column, column + 1 : end])
        weights[:, end:] -= errors @ inverse[start:end, end:]
    blocks = integers.reshape(len(weights), -1, block_size)
    return BlockWeights(_stored(blocks, bits), scales, None if symmetric else offsets, bits, count)


def _inverse_factor(moments: Float32Array) -> Float32Array:
    """Upper triangular ``U`` with ``U^T U`` the inverse of the damped second moments."""
    damped = moments.astype(np.float64)
    mean = float(np.diagonal(damped).mean())
    damped[np.diag_indices_from(damped)] += _DAMPING * mean if mean > 0 else 1.0
    factor: Float32Array = np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)
    return factor


def _best_range(
    part: Float32Array, importance: Float32Array, bits: int, *, symmetric: bool
) -> tuple[Float32Array, Float32Array]:
    """``(N,)`` scales and offsets with the least weighted square error among a few."""
    low, high = part.min(axis=1), part.max(axis=1)
    half = 1 << (bits - 1)
    if symmetric:
        high = np.maximum(-low, high)
    best_scale = best_offset = np.zeros(len(part), np.float32)
    least = np.full(len(part), np.inf, np.float32)
    for share in _SHRINK:
        if symmetric:
            scale, offset = _next_half(share * high / (half - 1)), np.zeros_like(high)
        else:
            scale = share * (high - low) / (2 * half - 1)
            offset = (low + high) / 2 + scale / 2  # integers reach from -half to half - 1
        rounded = _nearest(part - offset[:, None], scale[:, None], bits)
        error = part - rounded * scale[:, None] - offset[:, None]
        cost = (error * error) @ importance
        better = cost < least
        best_scale = np.where(better, scale, best_scale)
        best_offset = np.where(better, offset, best_offset)
        least = np.minimum(cost, least)
    return best_scale, best_offset


def _next_half(scales: Float32Array) -> Float32Array:
    """The next number of float16 from each one up, at least the smallest above 0."""
    halves = scales.astype(np.float16)
    halves = np.where(halves < scales, np.nextafter(halves, np.float16(np.inf)), halves)
    least = np.finfo(np.float16).smallest_subnormal
    found: Float32Array = np.maximum(halves, least).astype(np.float32)
    return found


def _full_range_scales(blocks: Float32Array, bits: int) -> Float32Array:
    """``(..., blocks)``: the value of largest magnitude becomes ``-2^(bits - 1)``."""
    at = np.abs(blocks).argmax(axis=-1)
    extreme = np.take_along_axis(blocks, at[..., None], axis=-1)[..., 0]
    scales: Float32Array = (extreme / -(1 << (bits - 1))).astype(np.float32)
    return scales


def _nearest(values: Float32Array, scales: Float32Array, bits: int) -> Float32Array:
    half = 1 << (bits - 1)
    divisor = np.where(scales != 0, scales, np.float32(1))
    rounded: Float32Array = np.clip(np.rint(values / divisor), -half, half - 1)
    return rounded


def _in_blocks(matrix: Float32Array, block_size: int) -> Float32Array:
    rows, count = matrix.shape
    padded = np.zeros((rows, _padded(count, block_size)), np.float32)
    padded[:, :count] = matrix
    return padded.reshape(rows, -1, block_size)


def _padded(count: int, block_size: int) -> int:
    return -(-count // block_size) * block_size


def _stored(integers: Float32Array, bits: int) -> UInt8Array:
    return (integers + (1 << (bits - 1))).astype(np.uint8)
