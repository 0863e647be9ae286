"""Graphs and weights in half precision.

A float16 graph keeps float32 where sums of squares, exponentials and rotation angles need it and
follows ordinary type promotion from there; products, attention and the cache are float16.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lade_edge.engines import ExportError
from lade_edge.export.graph_edit import GraphEditor, is_weight

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ANGLES = frozenset({"Cos", "Sin"})
_SUFFIX = ".float16"
_FLOAT16_MAX = float(np.finfo(np.float16).max)
# these run in float16 whatever comes in: the heavy operators and what touches the cache
_HALF = frozenset({
    "MatMul", "Gemm", "Attention", "TensorScatter", "RotaryEmbedding", "Gather", "GatherND",
})  # fmt: skip
_SINGLE = frozenset({
    "Pow", "ReduceMean", "ReduceSum", "Sqrt", "Reciprocal", "Exp", "Softmax", "Tanh",
    "TopK",
})  # fmt: skip


def check_range(graph: ir.Graph) -> None:
    """Refuse weights that float16 can't hold.

    Raises:
        ExportError: Naming the weight and its largest value.
    """
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT:
            continue
        largest = float(np.abs(tensor.numpy()).max(initial=0.0))
        if largest > _FLOAT16_MAX:
            raise ExportError(
                f"weight {name} reaches {largest:.4g}, float16 ends at {_FLOAT16_MAX:.0f}; "
                "use --precision fp32"
            )


def store_weights_as_half(graph: ir.Graph) -> None:
    """Store matrices in float16 and compute in float32: half the file on a CPU, in place.

    Each reader gets a Cast, which ONNX Runtime folds when it loads the graph.
    """
    edit = GraphEditor(graph)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype != ir.DataType.FLOAT or len(tensor.shape) < 2:
            continue
        del graph.initializers[name]
        half = edit.weight(_as_half(tensor, name))
        (single,) = edit.emit("Cast", [half], {"to": ir.DataType.FLOAT})
        single.name = f"{name}.float32"
        single.shape, single.type = value.shape, value.type
        value.replace_all_uses_with(single)
    edit.finish()


def convert_to_half(graph: ir.Graph) -> None:
    """Turn a canonical float32 graph into a strongly typed float16 one, in place.

    Masks, caches and weights become float16; the outputs ``logits`` and ``top_logits`` stay
    float32.
    """
    _Conversion(graph).run()


class _Conversion:
    def __init__(self, graph: ir.Graph) -> None:
        self.edit = GraphEditor(graph)
        self.graph = graph
        self._casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}
        self._angles = _ancestors_of(graph, _ANGLES)

    def run(self) -> None:
        outputs = {value: value.name for value in self.graph.outputs}
        for value in self.graph.inputs:
            if value.dtype == ir.DataType.FLOAT:
                value.dtype = ir.DataType.FLOAT16
        for node in list(self.graph):
            self._convert(node)
        for value, name in outputs.items():
            if name in ("logits", "top_logits") and value.dtype == ir.DataType.FLOAT16:
                self._widen_output(value)
        self.edit.finish()

    def _convert(self, node: ir.Node) -> None:
        floats = [value for value in node.inputs if value is not None and value.dtype in _FLOATS]
        if not floats or node.op_type == "Cast":
            return
        dtype = self._type_of(node, floats)
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in _FLOATS:
                node.replace_input_with(index, self._as_type(value, dtype))
        for value in node.outputs:
            if value.dtype in _FLOATS:
                value.dtype = dtype

    def _type_of(self, node: ir.Node, floats: list[ir.Value]) -> ir.DataType:
        if node in self._angles or node.op_type in _SINGLE:
            return ir.DataType.FLOAT
        if node.op_type in _HALF or _is_sum_of_states(node):
            return ir.DataType.FLOAT16
        active = [value for value in floats if not is_weight(value)]
        if any(value.dtype == ir.DataType.FLOAT for value in active):
            return ir.DataType.FLOAT
        return ir.DataType.FLOAT16

    def _as_type(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in self._casts:
            if is_weight(value):
                assert value.const_value is not None
                half = _as_half(value.const_value, f"{value.name}{_SUFFIX}")
                self._casts[value, dtype] = self.edit.weight(half)
            else:
                self._casts[value, dtype] = self._cast(value, dtype)
        return self._casts[value, dtype]

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        (out,) = self.edit.emit("Cast", [value], {"to": dtype})
        out.shape, out.type = value.shape, ir.TensorType(dtype)
        return out

    def _widen_output(self, value: ir.Value) -> None:
        name, value.name = value.name, f"{value.name}{_SUFFIX}"
        single = self._as_type(value, ir.DataType.FLOAT)
        for index, output in enumerate(self.graph.outputs):
            if output is value:
                self.graph.outputs[index] = single
        single.name = name


def _ancestors_of(graph: ir.Graph, op_types: frozenset[str]) -> set[ir.Node]:
    """These operators and all that feeds them: angles in float16 would lose whole positions."""
    found: set[ir.Node] = set()
    waiting = [node for node in graph if node.op_type in op_types]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            producers = [value.producer() for value in node.inputs if value is not None]
            waiting += [producer for producer in producers if producer is not None]
    return found


def _is_sum_of_states(node: ir.Node) -> bool:
    """A residual sum keeps the type of the hidden states whatever a layer computed in."""
    shapes = [value.shape if value is not None else None for value in node.inputs]
    if node.op_type != "Add" or any(shape is None or len(shape) != 3 for shape in shapes):
        return False
    return shapes[0] == shapes[1] and not any(is_weight(value) for value in node.inputs)


def _as_half(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float16), name=name),
        dtype=ir.DataType.FLOAT16,
        shape=ir.Shape(tensor.shape),
        name=name,
    )
