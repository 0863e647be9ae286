"""Graphs and weights in half precision.

A float16 graph keeps float32 where sums of squares, exponentials and rotation angles need it and
follows ordinary type promotion from there; products, attention and the cache are float16.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lade_edge.engines import ExportError
from lade_edge.export.graph_edit import GraphEditor, is_weight

_FLOAT16_MAX = float(np.finfo(np.float16).max)
# these run in float16 whatever comes in: the heavy operators and what touches the cache
_HALF = frozenset({
    "MatMul", "Gemm", "Attention", "TensorScatter", "RotaryEmbedding", "Gather",
})  # fmt: skip
_SINGLE = frozenset({
    "Cos", "Sin", "Pow", "ReduceMean", "ReduceSum", "Sqrt", "Reciprocal", "Exp", "Softmax", "Tanh",
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
    edit = GraphEditor(graph)
    for value in graph.inputs:
        if value.dtype == ir.DataType.FLOAT:
            value.dtype = ir.DataType.FLOAT16
    casts: dict[tuple[ir.Value, ir.DataType], ir.Value] = {}

    def as_type(value: ir.Value, dtype: ir.DataType) -> ir.Value:
        if value.dtype == dtype:
            return value
        if (value, dtype) not in casts:
            if is_weight(value):
                casts[value, dtype] = _half_weight(edit, value)
            else:
                (out,) = edit.emit("Cast", [value], {"to": dtype})
                out.shape, out.type = value.shape, ir.TensorType(dtype)
                casts[value, dtype] = out
        return casts[value, dtype]

    for node in list(graph):
        floats = [v for v in node.inputs if v is not None and v.dtype in _FLOATS]
        outputs = [v for v in node.outputs if v.dtype in _FLOATS]
        if not floats:
            continue
        dtype = _type_of(node, floats)
        for index, value in enumerate(node.inputs):
            if value is not None and value.dtype in _FLOATS:
                node.replace_input_with(index, as_type(value, dtype))
        for value in outputs:
            value.dtype = dtype
        if node.op_type == "Cast" and outputs:
            node.attributes["to"] = ir.AttrInt64("to", int(dtype))
    logits = next(value for value in graph.outputs if value.name == "logits")
    if logits.dtype != ir.DataType.FLOAT:
        single = next(n for n in logits.consumers() if n.op_type == "Cast").outputs[0]
        edit.replace(logits, single)
    edit.finish()


_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _type_of(node: ir.Node, floats: list[ir.Value]) -> ir.DataType:
    if node.op_type in _HALF:
        return ir.DataType.FLOAT16
    if node.op_type in _SINGLE:
        return ir.DataType.FLOAT
    active = [value for value in floats if not is_weight(value)]
    if any(value.dtype == ir.DataType.FLOAT for value in active):
        return ir.DataType.FLOAT
    return ir.DataType.FLOAT16


def _half_weight(edit: GraphEditor, value: ir.Value) -> ir.Value:
    assert value.const_value is not None and value.name is not None
    name = value.name
    if len(value.uses()) == 1:
        del edit.graph.initializers[name]
    else:
        name = f"{name}.float16"
    return edit.weight(_as_half(value.const_value, name))


def _as_half(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float16), name=name),
        dtype=ir.DataType.FLOAT16,
        shape=ir.Shape(tensor.shape),
        name=name,
    )
