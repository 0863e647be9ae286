"""Lowering for ONNX Runtime on a CPU: the canonical graph in the operators its kernels are made for.

The result is stamped opset 21 and IR version 10, so that ONNX Runtime 1.23 loads it.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from lade_edge.engines import ExportError, ModelSpec
from lade_edge.export.graph_edit import GraphEditor, float_attribute, is_weight, producer_of
from lade_edge.export.grouped_query_attention import MICROSOFT, use_grouped_query_attention
from lade_edge.export.packed_attention import rotate_in_attention
from lade_edge.export.projections import merge_siblings, read_tied_head_as_stored
from lade_edge.export.two_stage_top_k import find_best_in_two_stages

OPSET = 21
IR_VERSION = 10
_RUNTIME_OWN = frozenset({"SimplifiedLayerNormalization"})  # registered in the standard domain


def lower_for_onnxruntime(model: ir.Model, spec: ModelSpec) -> None:
    """Rewrite a canonical float32 graph, in place.

    Args:
        model: Canonical graph.
        spec: Shape of the model.

    Raises:
        ExportError: If an operator is left that ONNX Runtime 1.23 doesn't have.
    """
    use_grouped_query_attention(model.graph, spec)
    use_skip_norms(model.graph)
    merge_siblings(model.graph)
    rotate_in_attention(model.graph, spec)
    read_tied_head_as_stored(model.graph)
    find_best_in_two_stages(model.graph)
    stamp(model)


def use_skip_norms(graph: ir.Graph) -> None:
    """RMSNormalization as ``SimplifiedLayerNormalization``, joined with the residual sum ahead."""
    edit = GraphEditor(graph)
    for node in [n for n in graph if n.op_type == "RMSNormalization"]:
        source, scale = node.inputs
        assert source is not None
        epsilon = float_attribute(node, "epsilon", 1e-5)
        add = producer_of(source, "Add")
        if add is not None and _is_residual(add) and is_weight(scale, rank=1):
            normed, _, _, total = edit.emit(
                "SkipSimplifiedLayerNormalization",
                [*add.inputs, scale],
                {"epsilon": epsilon},
                domain=MICROSOFT,
                num_outputs=4,
            )
            edit.replace(node.outputs[0], normed)
            edit.replace(source, total)
            continue
        (normed,) = edit.emit(
            "SimplifiedLayerNormalization",
            [source, scale],
            {"axis": -1, "epsilon": epsilon, "stash_type": 1},
        )
        edit.replace(node.outputs[0], normed)
    edit.finish()


def _is_residual(add: ir.Node) -> bool:
    """Both sides are hidden states of the same shape, not a bias or a constant."""
    shapes = [value.shape if value is not None else None for value in add.inputs]
    if any(shape is None or len(shape) != 3 for shape in shapes):
        return False
    return not any(is_weight(v) for v in add.inputs) and shapes[0] == shapes[1]


def stamp(model: ir.Model) -> None:
    """Declare opset and IR version, having checked that every operator exists there.

    Raises:
        ExportError: Naming an operator that is newer.
    """
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx") or node.op_type in _RUNTIME_OWN:
            continue
        if not onnx.defs.has(node.op_type) or not _fits(node):
            raise ExportError(
                f"operator {node.op_type} at {node.name} is newer than opset {OPSET}, the newest "
                "onnxruntime 1.23 runs; use --target canonical"
            )
    model.graph.opset_imports[""] = OPSET
    model.graph.opset_imports[MICROSOFT] = 1
    model.ir_version = IR_VERSION


def _fits(node: ir.Node) -> bool:
    """Whether the operator, as used here, exists at the stamped opset."""
    try:
        schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=OPSET)
    except onnx.defs.SchemaError:
        return False
    return set(node.attributes) <= set(schema.attributes) and len(node.inputs) <= schema.max_input
