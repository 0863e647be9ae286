"""Blockwise weight-only products: ``MatMulNBits``, and what its symmetric blocks can't hold beside it.

A block's offset, which four bits need, ours like those of GGUF's Q4_1 and its relatives, adds offset times the sum of x over the
block: one product more, a block size smaller than the layer's own. Float zero points, which would
hold it directly, fall to a far slower kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from lade_edge.export.graph_edit import GraphEditor
from lade_edge.export.grouped_query_attention import MICROSOFT
from lade_edge.export.linear_layers import Linear, TokenTable
from lade_edge.export.quantize_weights import BlockWeights

ACCURACY_LEVEL = 4  # int8 activations, a scale per block of a row


def lower_to_blocks(
    graph: ir.Graph,
    linears: Sequence[tuple[Linear, BlockWeights]],
    table: tuple[TokenTable, BlockWeights] | None,
) -> None:
    """Rewrite linear layers and the token table, in place.

    Args:
        graph: Lowered float32 graph.
        linears: Layers with their weights ``(N, K)``.
        table: The token table with its weights of 8 bits; a layer that stores the same matrix
            shares them.
    """
    _Rewriter(graph).run(linears, table)


class _Rewriter:
    def __init__(self, graph: ir.Graph) -> None:
        self.edit = GraphEditor(graph)
        self._stored: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._sums: dict[tuple[ir.Value, int], ir.Value] = {}

    def run(
        self,
        linears: Sequence[tuple[Linear, BlockWeights]],
        table: tuple[TokenTable, BlockWeights] | None,
    ) -> None:
        for linear, weights in linears:
            self._multiply(linear, weights)
        if table is not None:
            self._look_up(*table)
        self.edit.finish()

    def _multiply(self, linear: Linear, weights: BlockWeights) -> None:
        edit = self.edit
        integers, scales = self._store(linear.name, weights)
        (result,) = edit.emit(
            "MatMulNBits",
            [linear.source, integers, scales],
            {
                "K": weights.columns,
                "N": len(weights.integers),
                "bits": weights.bits,
                "block_size": weights.block_size,
                "accuracy_level": ACCURACY_LEVEL,
            },
            domain=MICROSOFT,
        )
        if weights.offsets is not None:
            offsets = np.ascontiguousarray(weights.offsets.T)
            stored = edit.weight(ir.tensor(offsets, name=f"{linear.name}.offset"))
            (extra,) = edit.emit("MatMul", [self._block_sums(linear.source, weights), stored])
            (result,) = edit.emit("Add", [result, extra])
        edit.replace(linear.result, result)

    def _block_sums(self, source: ir.Value, weights: BlockWeights) -> ir.Value:
        """``(1, rows, blocks)``: x summed over each block."""
        key = source, weights.block_size
        if key not in self._sums:
            edit = self.edit
            blocks, size = weights.integers.shape[1:]
            missing = blocks * size - weights.columns
            if missing:  # the last block is not full
                pads = edit.integers(f"pads.blocks_{missing}", [0, 0, 0, 0, 0, missing])
                (source,) = edit.emit("Pad", [source, pads])
            shape = edit.integers(f"shape.blocks_{blocks}_{size}", [1, -1, blocks, size])
            (split,) = edit.emit("Reshape", [source, shape])
            last = edit.integers("axis.last", [-1])
            (self._sums[key],) = edit.emit("ReduceSum", [split, last], {"keepdims": 0})
        return self._sums[key]

    def _look_up(self, table: TokenTable, weights: BlockWeights) -> None:
        edit = self.edit
        ids = table.node.inputs[1]
        stored, all_scales = self._store(table.weight.name or "", weights)
        (rows,) = edit.emit("Gather", [stored, ids], {"axis": 0})
        (scales,) = edit.emit("Gather", [all_scales, ids], {"axis": 0})
        (factors,) = edit.emit("Unsqueeze", [scales, edit.integers("axis.last", [-1])])
        (unsigned,) = edit.emit("Cast", [rows], {"to": ir.DataType.FLOAT})
        centre = edit.floats("int8.centre", np.array([1 << (weights.bits - 1)], np.float32))
        (integers,) = edit.emit("Sub", [unsigned, centre])
        (values,) = edit.emit("Mul", [integers, factors])
        shape = edit.integers(f"shape.rows_{weights.columns}", [1, -1, weights.columns])
        (result,) = edit.emit("Reshape", [values, shape])
        edit.replace(table.node.outputs[0], result)

    def _store(self, name: str, weights: BlockWeights) -> tuple[ir.Value, ir.Value]:
        if name not in self._stored:
            self._stored[name] = (
                self.edit.weight(ir.tensor(weights.packed(), name=f"{name}.int{weights.bits}")),
                self.edit.weight(ir.tensor(weights.scales, name=f"{name}.scale")),
            )
        return self._stored[name]
