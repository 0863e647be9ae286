"""Row-wise int8 products: integers in, integers through the sums, one scale per row and column.

Every row of an input gets a scale of its own, so that a token's result depends on nothing else in
the step; integer sums are exact whatever their order. Per input: its rows' largest magnitudes, the
quantised rows, and then per layer the product with its columns' scales inside
(``MatMulIntegerToFloat``) and the rows' scales behind it. Activations are unsigned around 128,
because ONNX Runtime's packed kernels on x86 take no others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from lade_edge.export.graph_edit import GraphEditor
from lade_edge.export.grouped_query_attention import MICROSOFT
from lade_edge.export.linear_layers import Linear, TokenTable, stored_array
from lade_edge.export.quantize_weights import quantize_columns

_CENTRE = 128
_LARGEST = 127


def lower_to_int8(graph: ir.Graph, linears: Sequence[Linear], table: TokenTable | None) -> None:
    """Rewrite linear layers and the token table, in place.

    Args:
        graph: Lowered float32 graph.
        linears: Its linear layers.
        table: Its token table; stored once where the LM head is tied to it.
    """
    _Rewriter(graph).run(linears, table)


class _Rewriter:
    def __init__(self, graph: ir.Graph) -> None:
        self.edit = GraphEditor(graph)
        self._stored: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self._step_zeros: ir.Value | None = None
        self._one = self._scalar("int8.one", np.float32(1))
        self._step = self._scalar("int8.step", np.float32(1 / _LARGEST))
        self._zero = self._scalar("int8.zero", np.uint8(_CENTRE))

    def run(self, linears: Sequence[Linear], table: TokenTable | None) -> None:
        readers: dict[ir.Value, list[Linear]] = defaultdict(list)
        for linear in linears:
            readers[linear.source].append(linear)
        for source, group in readers.items():
            rows, scales = self._quantize_rows(source, group[0].matrix().shape[0])
            for linear in group:
                self._multiply(linear, rows, scales)
        if table is not None:
            self._look_up(table)
        self.edit.finish()

    def _quantize_rows(self, source: ir.Value, width: int) -> tuple[ir.Value, ir.Value]:
        """uint8 rows and float32 scales ``(..., rows, 1)``; a row of zeros has scale 0."""
        edit = self.edit
        (magnitudes,) = edit.emit("Abs", [source])
        last = edit.integers("axis.last", [-1])
        (largest,) = edit.emit("ReduceMax", [magnitudes, last], {"keepdims": 1})
        (scales,) = edit.emit("Mul", [largest, self._step])
        (rows,) = edit.emit(
            "QuantizeLinear",
            [source, scales, self._zeros(source, scales)],
            {"axis": -1, "block_size": width},  # one block a row
        )
        return rows, scales

    def _zeros(self, source: ir.Value, scales: ir.Value) -> ir.Value:
        """Zero points of the shape of ``scales``; those over a step's tokens are made once."""
        tokens = self.edit.input("input_ids").shape
        per_step = (
            tokens is not None
            and source.shape is not None
            and len(source.shape) == 3
            and source.shape[:2] == tokens[:2]
        )
        if per_step and self._step_zeros is not None:
            return self._step_zeros
        (shape,) = self.edit.emit("Shape", [scales])
        centre = ir.tensor(np.array([_CENTRE], np.uint8))
        (zeros,) = self.edit.emit("ConstantOfShape", [shape], {"value": centre})
        if per_step:
            self._step_zeros = zeros
        return zeros

    def _multiply(self, linear: Linear, rows: ir.Value, scales: ir.Value) -> None:
        edit = self.edit
        weight, columns = self._weight(linear)
        (product,) = edit.emit(
            "MatMulIntegerToFloat",
            [rows, weight, self._one, columns, self._zero],
            domain=MICROSOFT,
        )
        (result,) = edit.emit("Mul", [product, scales])
        edit.replace(linear.result, result)

    def _weight(self, linear: Linear) -> tuple[ir.Value, ir.Value]:
        """int8 ``(K, N)`` and scales ``(N,)``; a turned one is turned when the graph is loaded."""
        if not linear.turned:
            return self._store(linear.weight, turned=False)
        stored, scales = self._store(linear.weight, turned=True)
        (weight,) = self.edit.emit("Transpose", [stored], {"perm": [1, 0]})
        (columns,) = self.edit.emit("Reshape", [scales, self.edit.integers("shape.flat", [-1])])
        return weight, columns

    def _look_up(self, table: TokenTable) -> None:
        edit = self.edit
        ids = table.node.inputs[1]
        stored, scales = self._store(table.weight, turned=True)
        (integers,) = edit.emit("Gather", [stored, ids], {"axis": 0})
        (factors,) = edit.emit("Gather", [scales, ids], {"axis": 0})
        (values,) = edit.emit("Cast", [integers], {"to": ir.DataType.FLOAT})
        (result,) = edit.emit("Mul", [values, factors])
        edit.replace(table.node.outputs[0], result)

    def _store(self, weight: ir.Value, *, turned: bool) -> tuple[ir.Value, ir.Value]:
        """int8 in the weight's own layout, and scales: ``(N,)``, or ``(N, 1)`` of a turned one."""
        if weight not in self._stored:
            matrix = stored_array(weight)
            integers, scales = quantize_columns(matrix.T if turned else matrix)
            if turned:
                integers, scales = integers.T, scales[:, None]
            content = np.ascontiguousarray(integers)
            self._stored[weight] = (
                self.edit.weight(ir.tensor(content, name=f"{weight.name}.int8")),
                self.edit.weight(ir.tensor(scales, name=f"{weight.name}.scale")),
            )
        return self._stored[weight]

    def _scalar(self, name: str, value: np.generic) -> ir.Value:
        return self.edit.weight(ir.tensor(value, name=name))
