"""Fused operators as the primitives they stand for, in the type their input has.

For targets whose parsers know opset 17 and little more. Each form computes in float32 what the
operator's own definition does (ONNX ``stash_type``): squares, their mean, exponentials. The rest stays
in the input's type, so that a strongly typed float16 graph stays one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from lade_edge.engines import ExportError
from lade_edge.export.graph_edit import GraphEditor, float_attribute, int_attribute

SINGLE = ir.DataType.FLOAT
_LAST = -1


def decompose(graph: ir.Graph) -> None:
    """Replace normalisations, rotary embeddings, Gelu and even Splits, in place.

    Args:
        graph: Canonical graph, float32 or float16. Attention and TensorScatter are left alone.

    Raises:
        ExportError: If an operator is used in a way that has no form here.
    """
    rewriter = Decomposer(graph)
    for node in list(graph):
        rewrite = _REWRITES.get(node.op_type)
        if rewrite is not None and node.domain in ("", "ai.onnx"):
            rewrite(rewriter, node)
    rewriter.edit.finish()


class Decomposer:
    """Emits primitives into one graph.

    Args:
        graph: Changed in place.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.edit = GraphEditor(graph)
        self._tables: dict[ir.Value, ir.Value] = {}

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: object) -> ir.Value:
        """Add a node with one output and return it."""
        return self.edit.emit(op_type, inputs, attributes or None)[0]

    def constant(self, value: float, dtype: ir.DataType) -> ir.Value:
        """A scalar, made once per value and type."""
        name = f"scalar.{value:.9g}.{dtype.name.lower()}"
        if name not in self.edit.graph.initializers:
            self.edit.weight(ir.tensor(np.array(value, dtype.numpy()), name=name))
        return self.edit.graph.initializers[name]

    def integers(self, *values: int) -> ir.Value:
        """An int64 vector, made once per content."""
        return self.edit.integers("ints." + "_".join(map(str, values)), values)

    def cast(
        self, value: ir.Value, dtype: ir.DataType, have: ir.DataType | None = None
    ) -> ir.Value:
        """``value`` as ``dtype``; ``have`` names its type where the graph doesn't."""
        return value if (have or value.dtype) == dtype else self.op("Cast", value, to=dtype)

    def split(self, value: ir.Value, sizes: Sequence[int], axis: int = _LAST) -> list[ir.Value]:
        """Pieces of ``value`` along an axis."""
        return self.edit.emit(
            "Split", [value, self.integers(*sizes)], {"axis": axis}, num_outputs=len(sizes)
        )

    def rms_normalization(self, node: ir.Node) -> None:
        """``x / sqrt(mean(x^2) + eps) * scale`` over the last axis."""
        source, scale = _normalised_input(node), node.inputs[1]
        assert scale is not None
        unit = self._unit(node, self.cast(source, SINGLE))
        scaled = self.op("Mul", self.cast(unit, _type(source), SINGLE), scale)
        self.edit.replace(node.outputs[0], scaled)

    def layer_normalization(self, node: ir.Node) -> None:
        """``(x - mean) / sqrt(var + eps) * scale + bias`` over the last axis."""
        source, scale = _normalised_input(node), node.inputs[1]
        single = self.cast(source, SINGLE)
        mean = self.op("ReduceMean", single, axes=[_LAST], keepdims=1)
        unit = self._unit(node, self.op("Sub", single, mean))
        out = self.op("Mul", self.cast(unit, _type(source), SINGLE), scale)
        if len(node.inputs) > 2 and node.inputs[2] is not None:
            out = self.op("Add", out, node.inputs[2])
        self.edit.replace(node.outputs[0], out)

    def rotary_embedding(self, node: ir.Node) -> None:
        """Pairs of an even and an odd half, or of neighbours, turned by the tables' angles.

        Input ``(1, H, T, D)``, tables ``(1, T, R / 2)``; the last ``D - R`` columns pass through.
        """
        source = node.inputs[0]
        shape = source.shape if source is not None else None
        if source is None or shape is None or len(shape) != 4 or len(node.inputs) > 3:
            raise ExportError(
                f"rotary embedding {node.name} isn't over (1, H, T, D) with tables per token; it "
                "has no form for this target"
            )
        heads, size = shape[1], shape[3]
        assert isinstance(heads, int) and isinstance(size, int)
        turned = int_attribute(node, "rotary_embedding_dim") or size
        cos, sin = (self._table(table) for table in node.inputs[1:3])
        rest: list[ir.Value] = []
        if turned < size:
            source, *rest = self.split(source, [turned, size - turned])
        half = turned // 2
        interleaved = bool(int_attribute(node, "interleaved"))
        if interleaved:
            pairs = self.op("Reshape", source, self.integers(1, heads, -1, half, 2))
            even, odd = (
                self.op("Squeeze", part, self.integers(_LAST)) for part in self.split(pairs, [1, 1])
            )
        else:
            even, odd = self.split(source, [half, half])
        first = self.op("Sub", self.op("Mul", even, cos), self.op("Mul", odd, sin))
        second = self.op("Add", self.op("Mul", even, sin), self.op("Mul", odd, cos))
        if interleaved:
            axis = self.integers(_LAST)
            columns = [self.op("Unsqueeze", part, axis) for part in (first, second)]
            paired = self.op("Concat", *columns, axis=_LAST)
            parts = [self.op("Reshape", paired, self.integers(1, heads, -1, turned))]
        else:
            parts = [first, second]
        parts += rest
        out = self.op("Concat", *parts, axis=_LAST) if len(parts) > 1 else parts[0]
        self.edit.replace(node.outputs[0], out)

    def gelu(self, node: ir.Node) -> None:
        """``x / 2 * (1 + erf(x / sqrt 2))`` or its tanh approximation, in float32."""
        source = node.inputs[0]
        assert source is not None
        x = self.cast(source, SINGLE)
        mode = node.attributes.get("approximate")
        if mode is not None and mode.as_string() == "tanh":
            cubic = self.op("Mul", self.op("Mul", self.op("Mul", x, x), x), self._single(0.044715))
            inner = self.op("Mul", self.op("Add", x, cubic), self._single(math.sqrt(2 / math.pi)))
            bell = self.op("Tanh", inner)
        else:
            bell = self.op("Erf", self.op("Mul", x, self._single(math.sqrt(0.5))))
        half = self.op("Mul", x, self._single(0.5))
        out = self.op("Mul", half, self.op("Add", bell, self._single(1.0)))
        self.edit.replace(node.outputs[0], self.cast(out, _type(source), SINGLE))

    def even_split(self, node: ir.Node) -> None:
        """A Split by ``num_outputs``, newer than opset 17, as one with sizes."""
        if "num_outputs" not in node.attributes:
            return
        source, axis = node.inputs[0], int_attribute(node, "axis")
        size = source.shape[axis] if source is not None and source.shape is not None else None
        if source is None or not isinstance(size, int):
            raise ExportError(f"Split {node.name} is along an axis of unknown size")
        count = len(node.outputs)
        piece = -(-size // count)
        sizes = [piece] * (count - 1) + [size - piece * (count - 1)]
        for old, new in zip(node.outputs, self.split(source, sizes, axis), strict=True):
            self.edit.replace(old, new)

    def _unit(self, node: ir.Node, centred: ir.Value) -> ir.Value:
        square = self.op("Mul", centred, centred)
        mean = self.op("ReduceMean", square, axes=[_LAST], keepdims=1)
        epsilon = self._single(float_attribute(node, "epsilon", 1e-5))
        return self.op("Div", centred, self.op("Sqrt", self.op("Add", mean, epsilon)))

    def _single(self, value: float) -> ir.Value:
        return self.constant(value, SINGLE)

    def _table(self, table: ir.Value | None) -> ir.Value:
        """``(1, 1, T, R / 2)`` from ``(1, T, R / 2)``."""
        assert table is not None
        if table not in self._tables:
            self._tables[table] = self.op("Unsqueeze", table, self.integers(1))
        return self._tables[table]


def _normalised_input(node: ir.Node) -> ir.Value:
    """What a normalisation over the last axis reads."""
    source = node.inputs[0]
    assert source is not None
    rank = len(source.shape) if source.shape is not None else None
    used = [out for out in node.outputs[1:] if out.uses()]
    if int_attribute(node, "axis", _LAST) not in (_LAST, rank and rank - 1) or used:
        raise ExportError(f"{node.op_type} {node.name} isn't over the last axis alone")
    return source


def _type(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


_REWRITES: dict[str, Callable[[Decomposer, ir.Node], None]] = {
    "RMSNormalization": Decomposer.rms_normalization,
    "LayerNormalization": Decomposer.layer_normalization,
    "RotaryEmbedding": Decomposer.rotary_embedding,
    "Gelu": Decomposer.gelu,
    "Split": Decomposer.even_split,
}
