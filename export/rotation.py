"""Spreads outliers that no factor per channel can tame over a block of channels.

Behind a gate single entries of a row are many times larger than the rest, each time others. A block
of channels times a Hadamard matrix, which is orthogonal, has the outlier in equal parts in all of
them; the layer's rows are turned the same way, so that the float result stays the same. The turn of
the activations is a small product at run time. After Ashkboos et al. (QuaRot), 2024,
arXiv:2404.00456.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.calibration import InputStatistics
from lade_edge.export.graph_edit import GraphEditor, producer_of
from lade_edge.export.linear_layers import Linear, store_array
from lade_edge.export.quantize_weights import rounding_error

BLOCK = 64  # channels
_WORTH = 0.5  # of the squared rounding error, at which a turn pays its time


def rotate_products(
    graph: ir.Graph, linears: Sequence[Linear], statistics: Mapping[str, InputStatistics]
) -> list[Linear]:
    """Turn what comes out of a gate, in place, where it halves the squared rounding error.

    Args:
        graph: Lowered float32 graph.
        linears: Its linear layers.
        statistics: What went into each, by the name of its source.

    Returns:
        The layers, those behind a turn with their new source.
    """
    edit = GraphEditor(graph)
    readers: dict[ir.Value, list[Linear]] = defaultdict(list)
    for linear in linears:
        readers[linear.source].append(linear)
    turned: dict[ir.Value, ir.Value] = {}
    for source, group in readers.items():
        seen = statistics.get(source.name or "")
        if seen is None or producer_of(source, "Mul") is None or not _pays(seen, group):
            continue
        turned[source] = _turn(edit, source, seen.sample.shape[1])
        for linear in group:
            linear.node.replace_input_with(0, turned[source])
            store_array(linear.weight, _turned_rows(linear.matrix()))
    edit.finish()
    return [replace(n, source=turned.get(n.source, n.source)) for n in linears]


def hadamard(size: int) -> Float32Array:
    """``(size, size)`` orthogonal and symmetric, Sylvester's; ``size`` is a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: Float32Array = matrix / np.float32(np.sqrt(size))
    return scaled


def _pays(seen: InputStatistics, group: list[Linear]) -> bool:
    width = seen.sample.shape[1]
    if width % BLOCK or any(n.turned or len(n.weight.uses()) != 1 for n in group):
        return False
    matrix = np.concatenate([linear.matrix() for linear in group], axis=1)
    matrix = matrix[:, :: max(1, matrix.shape[1] // 160)]
    rows = _turned_rows(seen.sample.T).T
    before = rounding_error(seen.sample, matrix)
    return rounding_error(rows, _turned_rows(matrix)) < _WORTH * before


def _turned_rows(matrix: Float32Array) -> Float32Array:
    """``(K, N)`` with each block of rows turned."""
    blocks = matrix.reshape(-1, BLOCK, matrix.shape[1])
    turned: Float32Array = (hadamard(BLOCK) @ blocks).reshape(matrix.shape)
    return turned


def _turn(edit: GraphEditor, source: ir.Value, width: int) -> ir.Value:
    split = edit.integers(f"shape.turn_{width}", [1, -1, BLOCK])
    (blocks,) = edit.emit("Reshape", [source, split])
    (turned,) = edit.emit("MatMul", [blocks, edit.floats("hadamard", hadamard(BLOCK))])
    (rows,) = edit.emit("Reshape", [turned, edit.integers(f"shape.rows_{width}", [1, -1, width])])
    rows.shape, rows.type = source.shape, source.type
    return rows
