"""Linear layers side by side: one product instead of several over the same input.

Exact: every output column is the same dot product as before.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx_ir as ir

from lade_edge.export.graph_edit import GraphEditor, is_permutation, is_weight, sole_consumer


def merge_siblings(graph: ir.Graph) -> None:
    """Concatenate the weights of MatMuls that read the same value (q/k/v, gate/up), in place.

    Biases are merged as well when every sibling has one.
    """
    edit = GraphEditor(graph)
    readers: dict[ir.Value, list[ir.Node]] = defaultdict(list)
    for node in graph:
        if node.op_type == "MatMul" and is_weight(node.inputs[1], rank=2):
            source = node.inputs[0]
            assert source is not None
            readers[source].append(node)
    for source, nodes in readers.items():
        if len(nodes) > 1 and not any(n.outputs[0].is_graph_output() for n in nodes):
            _merge(edit, source, nodes)
    edit.finish()


def _merge(edit: GraphEditor, source: ir.Value, nodes: list[ir.Node]) -> None:
    weights = [node.inputs[1] for node in nodes]
    (merged,) = edit.emit("MatMul", [source, edit.weight(_concatenated(weights, axis=1))])
    replaced = [node.outputs[0] for node in nodes]
    additions = [_bias_addition(value) for value in replaced]
    if all(add is not None for add in additions):
        biases = [_bias(add) for add in additions if add is not None]
        (merged,) = edit.emit("Add", [merged, edit.weight(_concatenated(biases, axis=0))])
        replaced = [add.outputs[0] for add in additions if add is not None]
    columns = [int(weight.shape[1]) for weight in weights]
    sizes = edit.integers("split." + "_".join(map(str, columns)), columns)
    parts = edit.emit("Split", [merged, sizes], {"axis": -1}, num_outputs=len(nodes))
    for old, new in zip(replaced, parts, strict=True):
        edit.replace(old, new)


def _bias_addition(value: ir.Value) -> ir.Node | None:
    add = sole_consumer(value, "Add")
    return add if add is not None and any(is_weight(v, rank=1) for v in add.inputs) else None


def _bias(add: ir.Node) -> ir.Value | None:
    return next(value for value in add.inputs if is_weight(value, rank=1))


def _concatenated(values: list[ir.Value | None], axis: int) -> ir.TensorProtocol:
    tensors = [value.const_value for value in values if value is not None]
    kept = [tensor for tensor in tensors if tensor is not None]
    shape = list(kept[0].shape)
    shape[axis] = sum(int(tensor.shape[axis]) for tensor in kept)
    name = "+".join(str(tensor.name) for tensor in kept)
    return ir.LazyTensor(
        lambda: ir.tensor(np.concatenate([t.numpy() for t in kept], axis=axis), name=name),
        dtype=kept[0].dtype,
        shape=ir.Shape(shape),
        name=name,
    )


def read_tied_head_as_stored(graph: ir.Graph) -> None:
    """Let the LM head read a tied embedding in its own layout: ``FusedMatMul`` turns it itself.

    Without this, ONNX Runtime would keep a transposed copy of the embedding beside it.
    """
    edit = GraphEditor(graph)
    for node in [n for n in graph if n.op_type == "MatMul"]:
        hidden, weight = node.inputs
        swap = weight.producer() if weight is not None else None
        stored = swap.inputs[0] if swap is not None else None
        if is_permutation(swap, (1, 0)) and is_weight(stored, rank=2):
            (out,) = edit.emit(
                "FusedMatMul", [hidden, stored], {"transB": 1}, domain="com.microsoft"
            )
            edit.replace(node.outputs[0], out)
    edit.finish()
