"""Spreads outliers that no factor per channel can tame over a block of channels.

Behind a gate single entries of a row are many times larger than the rest, each time others; what
the LM head reads is little better. A block of channels times a Hadamard matrix, which is orthogonal,
has an outlier in equal parts in all of them; the layer's rows are rotated the same way, so that the
float result stays the same. The rotation of the activations is a small product at run time. After
Ashkboos et al. (QuaRot), 2024, arXiv:2404.00456.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.graph_edit import GraphEditor, producer_of
from lade_edge.export.linear_layers import (
    Linear,
    TokenTable,
    by_source,
    is_head_input,
    read_instead,
    store_matrix,
)

BLOCK = 64  # channels
_COLUMNS = 160  # of a matrix, by which a choice is judged


def find_rotatable(linears: Sequence[Linear], table: TokenTable | None) -> set[ir.Value]:
    """Inputs that may be rotated: gated products, and what the LM head reads once a step.

    Args:
        linears: Layers of a lowered float32 graph.
        table: Its token table, which a tied LM head reads as well.
    """
    tied = table.weight if table is not None else None
    return {
        source
        for source, group in by_source(linears).items()
        if (producer_of(source, "Mul") is not None or is_head_input(source))
        and group[0].matrix().shape[0] % BLOCK == 0
        and all(len(n.weight.uses()) == 1 + (n.weight is tied) for n in group)
    }


def rotate(
    graph: ir.Graph,
    linears: Sequence[Linear],
    table: TokenTable | None,
    sources: Collection[ir.Value],
) -> list[Linear]:
    """Rotate inputs and the layers that read them, in place.

    Args:
        graph: Lowered float32 graph.
        linears: Its linear layers.
        table: Its token table; what is looked up in one that is rotated is rotated back.
        sources: Inputs to rotate, among those of `find_rotatable`.

    Returns:
        All layers, the rotated ones with their new source.
    """
    edit = GraphEditor(graph)
    rotated: dict[ir.Value, ir.Value] = {}
    for source, group in by_source(linears).items():
        if source not in sources:
            continue
        width = group[0].matrix().shape[0]
        rotated[source] = _rotation_of(edit, source, width)
        for linear in group:
            linear.node.replace_input_with(0, rotated[source])
            store_matrix(linear, rotate_rows(linear.matrix()))
            if table is not None and linear.weight is table.weight:
                looked_up = table.node.outputs[0]
                read_instead(looked_up, _rotation_of(edit, looked_up, width))
    edit.finish()
    return [replace(n, source=rotated.get(n.source, n.source)) for n in linears]


def hadamard(size: int) -> Float32Array:
    """``(size, size)`` orthogonal and symmetric, Sylvester's; ``size`` is a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    scaled: Float32Array = matrix / np.float32(np.sqrt(size))
    return scaled


def rotate_rows(matrix: Float32Array) -> Float32Array:
    """``(K, N)`` with each block of rows rotated; twice gives the matrix again."""
    blocks = matrix.reshape(-1, BLOCK, matrix.shape[1])
    rotated: Float32Array = (hadamard(BLOCK) @ blocks).reshape(matrix.shape)
    return rotated


def some_columns(matrix: Float32Array) -> Float32Array:
    """Columns from all over a matrix, enough to judge an error by."""
    return matrix[:, :: max(1, matrix.shape[1] // _COLUMNS)]


def _rotation_of(edit: GraphEditor, source: ir.Value, width: int) -> ir.Value:
    split = edit.integers(f"shape.rotation_{width}", [1, -1, BLOCK])
    (blocks,) = edit.emit("Reshape", [source, split])
    (product,) = edit.emit("MatMul", [blocks, edit.floats("hadamard", hadamard(BLOCK))])
    whole = edit.integers(f"shape.rows_{width}", [1, -1, width])
    (rows,) = edit.emit("Reshape", [product, whole])
    rows.shape, rows.type = source.shape, source.type
    return rows
