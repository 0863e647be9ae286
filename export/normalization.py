"""Normalisation layers as the standard operators, each with one plain vector as its scale."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.rules.fusion import _rms_normalization

from lade_edge.export.graph_edit import (
    GraphEditor,
    float_attribute,
    int_list,
    is_weight,
    producer_of,
)


def fold_scale_offsets(graph: ir.Graph) -> None:
    """Store ``1 + weight``, as Gemma scales its norms, under the weight's own name, in place."""
    edit = GraphEditor(graph)
    for node in [n for n in graph if n.op_type == "Add"]:
        for weight, other in (node.inputs, node.inputs[::-1]):
            offset = ir.convenience.get_const_tensor(other)
            if not is_weight(weight, rank=1) or offset is None or offset.size != 1:
                continue
            assert weight is not None and weight.name is not None
            if len(weight.uses()) != 1 or weight.dtype != ir.DataType.FLOAT:
                continue
            tensor = _sum(weight.const_value, offset, weight.name)
            del graph.initializers[weight.name]
            node.outputs[0].replace_all_uses_with(edit.weight(tensor))
            break
    edit.finish()


def fuse_norms(model: ir.Model) -> None:
    """Fuse RMSNormalization, and LayerNormalization where it was traced as arithmetic, in place."""
    _rms_normalization.fuse_rms_normalization(model)
    edit = GraphEditor(model.graph)
    for node in [n for n in model.graph if n.op_type == "RMSNormalization"]:
        _separate_scale(edit, node)
        _use_layer_norm(edit, node)
    edit.finish()


def _sum(weight: ir.TensorProtocol, offset: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.LazyTensor(
        lambda: ir.tensor((weight.numpy() + offset.numpy()).astype(np.float32), name=name),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape(weight.shape),
        name=name,
    )


def _separate_scale(edit: GraphEditor, node: ir.Node) -> None:
    """Multiply afterwards by what isn't a vector over the normalised axis (a scale per head)."""
    source, scale = node.inputs
    if is_weight(scale, rank=1):
        return
    assert source is not None and source.shape is not None
    size = source.shape[-1]
    if not isinstance(size, int):
        return
    out = node.outputs[0]
    (scaled,) = edit.emit("Mul", [out, scale])
    edit.replace(out, scaled)
    scaled.producer().replace_input_with(0, out)
    node.replace_input_with(1, edit.floats(f"ones.{size}", np.ones(size, np.float32)))


def _use_layer_norm(edit: GraphEditor, node: ir.Node) -> None:
    """``RMSNormalization(x - mean(x))`` is a LayerNormalization without bias."""
    centred = producer_of(node.inputs[0], "Sub")
    mean = producer_of(centred.inputs[1], "ReduceMean") if centred is not None else None
    if centred is None or mean is None or mean.inputs[0] is not centred.inputs[0]:
        return
    if int_list(mean.inputs[1]) != [-1]:
        return
    attributes = {"axis": -1, "epsilon": float_attribute(node, "epsilon", 1e-5)}
    (out,) = edit.emit("LayerNormalization", [mean.inputs[0], node.inputs[1]], attributes)
    edit.replace(node.outputs[0], out)
