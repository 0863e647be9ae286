"""Weights stored as small integers behind DequantizeLinear, the form TensorRT calls explicit quantisation.

Weights only. Activations stay in floating point: TensorRT rounds them with scales fixed when the plan
is built, one for a whole tensor, and what such a scale does to a token's outliers is measured for
scales per token alone in this project; a scale taken from the step would let a row depend on its
companions. Integers are symmetric and scales positive numbers that float16 holds exactly, so that the
graph says the same in float32 and float16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.graph_edit import GraphEditor
from lade_edge.export.linear_layers import Linear
from lade_edge.export.quantize_weights import BlockWeights, Int8Array, quantize_columns

COLUMNS_OPSET, BLOCKS_OPSET = 19, 21  # DequantizeLinear with float16 scales, with blocks of int4


@dataclass(frozen=True, slots=True)
class ColumnWeights:
    """A matrix ``(K, N)`` with a scale for each column.

    Attributes:
        integers: ``(K, N)`` int8.
        scales: ``(N,)`` float32.
    """

    integers: Int8Array
    scales: Float32Array


def round_columns(matrix: Float32Array) -> ColumnWeights:
    """Eight bits to nearest.

    Args:
        matrix: ``(K, N)``.
    """
    return ColumnWeights(*quantize_columns(matrix, exact_in_half=True))


def lower_to_qdq(
    graph: ir.Graph, linears: Sequence[tuple[Linear, BlockWeights | ColumnWeights]]
) -> None:
    """Let linear layers read dequantised integers, in place; a token table stays as it is.

    Args:
        graph: Canonical float32 graph.
        linears: Layers with their weights: blocks of 4 bits without offsets, or columns of 8.
    """
    edit = GraphEditor(graph)
    stored: dict[str, ir.Value] = {}
    for linear, weights in linears:
        name = f"{linear.name}.int{'4' if isinstance(weights, BlockWeights) else '8'}"
        if name not in stored:
            stored[name] = _dequantized(edit, name, linear, weights)
        linear.node.replace_input_with(1, stored[name])
    edit.finish()


def _dequantized(
    edit: GraphEditor, name: str, linear: Linear, weights: BlockWeights | ColumnWeights
) -> ir.Value:
    """float32 ``(K, N)``."""
    if isinstance(weights, BlockWeights):
        assert weights.bits == 4 and weights.offsets is None
        integers = _packed(weights, name)
        scales = np.ascontiguousarray(weights.scales.T)
        attributes = {"axis": 0, "block_size": weights.block_size}
    else:
        integers = ir.tensor(np.ascontiguousarray(weights.integers), name=name)
        scales, attributes = weights.scales, {"axis": 1}
    factors = edit.weight(ir.tensor(scales, name=f"{linear.name}.scale"))
    (out,) = edit.emit("DequantizeLinear", [edit.weight(integers), factors], attributes)
    out.shape, out.type = ir.Shape(integers.shape), ir.TensorType(ir.DataType.FLOAT)
    return out


def _packed(weights: BlockWeights, name: str) -> ir.TensorProtocol:
    """int4 ``(K, N)``, two in a byte along N, the lower half first."""
    unsigned = weights.integers.reshape(len(weights.integers), -1).T  # (K, N), 8 too large
    halves = np.ascontiguousarray(unsigned ^ 8).reshape(-1)
    if len(halves) % 2:
        halves = np.append(halves, np.uint8(0))
    packed = halves[0::2] | (halves[1::2] << np.uint8(4))
    return ir.PackedTensor(packed, ir.DataType.INT4, shape=ir.Shape(unsigned.shape), name=name)
