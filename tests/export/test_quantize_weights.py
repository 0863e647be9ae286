"""Rounding of weights: error bounds, packing, and what calibration is good for."""

from __future__ import annotations

import numpy as np
import pytest

from lade_edge.export.quantize_weights import (
    BlockWeights,
    quantize_blocks,
    quantize_columns,
    round_blocks,
    rounding_error,
)
from lade_edge.export.rotation import hadamard, rotate_rows

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def test_columns_are_within_half_a_step() -> None:
    matrix = normal(96, 40) * np.geomspace(1e-3, 1e3, 40, dtype=np.float32)
    integers, scales = quantize_columns(matrix)
    assert integers.dtype == np.int8
    assert (np.abs(integers).max(axis=0) == 127).all()
    assert (np.abs(integers * scales - matrix) <= 0.501 * scales).all()


def test_a_column_of_zeros_stays_one() -> None:
    integers, scales = quantize_columns(np.zeros((8, 3), np.float32))
    assert not integers.any()
    assert not scales.any()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [64, 70])
def test_blocks_are_within_a_step(bits: int, columns: int) -> None:
    matrix = normal(20, columns)
    blocks = round_blocks(matrix, bits, 32)
    assert blocks.dequantized().shape == matrix.shape
    steps = np.repeat(np.abs(blocks.scales), 32, axis=1)[:, :columns]
    # the end of the range that the largest value doesn't take is one step short
    assert (np.abs(blocks.dequantized() - matrix) <= 1.001 * steps).all()


def test_four_bits_are_packed_lower_first() -> None:
    integers = np.arange(32, dtype=np.uint8).reshape(1, 1, 32) % 16
    scales = np.ones((1, 1), np.float32)
    packed = BlockWeights(integers, scales, None, 4, 32).packed()
    assert packed.shape == (1, 1, 16)
    assert packed[0, 0, :2].tolist() == [0x10, 0x32]


def test_more_bits_and_shorter_blocks_hold_the_same() -> None:
    blocks = round_blocks(normal(6, 64), 4, 32)
    offsets = normal(*blocks.scales.shape)
    blocks = BlockWeights(blocks.integers, blocks.scales, offsets, 4, 64)
    other = blocks.rearranged(8, 16)
    assert (other.bits, other.block_size) == (8, 16)
    np.testing.assert_array_equal(other.dequantized(), blocks.dequantized())
    with pytest.raises(ValueError, match="more bits and shorter blocks"):
        other.rearranged(4, 16)


def test_calibrated_rounding_beats_rounding_to_nearest() -> None:
    mixing = normal(64, 64)
    inputs = normal(2000, 64) @ mixing
    matrix = normal(48, 64)
    moments = (inputs.T @ inputs / len(inputs)).astype(np.float32)

    def error(blocks: BlockWeights) -> float:
        return float(np.square(inputs @ (blocks.dequantized() - matrix).T).mean())

    calibrated = error(quantize_blocks(matrix, moments, 4, 32))
    assert calibrated < 0.7 * error(round_blocks(matrix, 4, 32))


def test_inputs_that_never_come_do_no_harm() -> None:
    moments = np.zeros((32, 32), np.float32)
    matrix = normal(5, 32)
    blocks = quantize_blocks(matrix, moments, 4, 32)
    assert np.isfinite(blocks.dequantized()).all()
    assert np.abs(blocks.dequantized() - matrix).max() < 0.5


def test_a_rotation_is_undone_by_itself_and_spreads_outliers() -> None:
    np.testing.assert_allclose(hadamard(64) @ hadamard(64), np.eye(64), atol=1e-6)
    matrix, rows = normal(128, 30), normal(50, 128)
    rows[np.arange(50), RNG.integers(0, 128, 50)] *= 40
    np.testing.assert_allclose(rotate_rows(rotate_rows(matrix)), matrix, atol=1e-5)
    rotated = rotate_rows(rows.T).T
    np.testing.assert_allclose(rotated @ rotate_rows(matrix), rows @ matrix, atol=2e-3)
    assert rounding_error(rotated, rotate_rows(matrix)) < 0.2 * rounding_error(rows, matrix)


def test_a_single_column_is_rounded_like_any() -> None:
    """A layer with one output, whose scales and offsets are single numbers."""
    matrix = normal(64, 1)
    integers, scales = quantize_columns(matrix)
    assert (integers.shape, scales.shape) == ((64, 1), (1,))
    assert (np.abs(integers * scales - matrix) <= 0.501 * scales).all()
    moments = np.eye(64, dtype=np.float32)
    for blocks in (round_blocks(matrix.T, 4, 32), quantize_blocks(matrix.T, moments, 4, 32)):
        assert blocks.packed().shape == (1, 2, 16)
        assert np.abs(blocks.dequantized() - matrix.T).max() <= 1.001 * np.abs(blocks.scales).max()
