"""Lowering for TensorRT: the cache's length becomes a constant, and one of two forms is chosen.

``in_place``
    The canonical operators. The parser turns TensorScatter into the in-place cache layer and
    Attention into the fused one, which TensorRT has since 10.15 and TensorRT-RTX.

``rows``
    Primitives of opset 17 only (19 with weights in int8), for parsers without those layers (TensorRT 10.3 to 10.14) or with
    models they don't take. The graph reads the cache and never writes it: it returns the step's new
    rows, ``kv_rows`` (2 L, H_kv, T, D), and the adapter copies those that are kept. So nothing is
    copied for a token that is rejected, and no second cache is needed. Scores over the cache and over
    the step's own tokens are computed apart and meet in one softmax; the mask is cut in two likewise,
    ``attn_mask`` (1, 1, T, S) and ``step_mask`` (1, 1, T, T).
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from lade_edge.engines import ExportError
from lade_edge.engines.plan import IN_PLACE, KV_ROWS, ROWS
from lade_edge.export.decompose import SINGLE, Decomposer, decompose
from lade_edge.export.graph_edit import float_attribute, producer_of
from lade_edge.export.lower_qdq import COLUMNS_OPSET

ROWS_OPSET = 17
_IR_VERSIONS = {ROWS_OPSET: 8, COLUMNS_OPSET: 9}
_SLOTS = "num_slots"  # the constant S, filled in at the end
_FAR = 2**31 - 1
_MASKS = {"attn_mask": "step_mask", "attn_mask_window": "step_mask_window"}
# Operators with a Y in docs/operators.md of onnx-tensorrt for TensorRT 8.5 ("up to Opset 17"), the
# newest such table at hand that is older than 10.3; no release since has taken one of them away.
PARSER_OPERATORS = frozenset({
    "Add", "Cast", "Clip", "Concat", "Cos", "DequantizeLinear", "Div", "Equal", "Erf", "Exp", "Expand", "Gather",
    "GatherElements", "GatherND", "Gemm", "Identity", "MatMul", "Mul", "Neg", "Pow", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Reshape", "ScatterElements",
    "ScatterND", "Shape", "Sigmoid", "Sin", "Slice", "Softmax", "Split", "Sqrt", "Squeeze", "Sub",
    "Tanh", "Tile", "TopK", "Transpose", "Unsqueeze", "Where",
})  # fmt: skip


def lower_for_tensorrt(model: ir.Model, *, form: str, slots: int) -> None:
    """Rewrite a canonical graph, in place.

    Args:
        model: Canonical graph, float32 or strongly typed float16, its weights perhaps in QDQ form.
        form: ``in_place`` or ``rows``.
        slots: ``S``, rows of the cache: capacity and the widest step together.

    Raises:
        ExportError: If an operator is left that the target's parser doesn't know.
    """
    if form == ROWS:
        _RowsForm(model.graph).run()
        decompose(model.graph)
        _fix_slots(model.graph, slots)
        _stamp(model)
    elif form == IN_PLACE:
        _fix_slots(model.graph, slots)
    else:
        raise ValueError(f"unknown form {form}")


class _RowsForm:
    """Attention over a cache that is only read, and the step's own keys and values."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.make = Decomposer(graph)
        self.edit = self.make.edit
        self._masks: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        self._add_step_masks()
        for node in [n for n in self.graph if n.op_type == "Attention"]:
            self._attention(node)
        self._return_rows()
        at = [value.name for value in self.graph.inputs].index("write_index")
        self.edit.finish()
        del self.graph.inputs[at]

    def _add_step_masks(self) -> None:
        for value in list(self.graph.inputs):
            if value.name in _MASKS:
                step = ir.Value(
                    name=_MASKS[value.name], shape=ir.Shape([1, 1, "T", "T"]), type=value.type
                )
                self.graph.inputs.append(step)

    def _attention(self, node: ir.Node) -> None:
        query, mask = node.inputs[0], node.inputs[3]
        keys, values = (producer_of(value, "TensorScatter") for value in node.inputs[1:3])
        if keys is None or values is None or query is None or mask is None:
            raise ExportError(
                f"attention {node.name} reads keys that no TensorScatter writes; it has no form "
                "for TensorRT"
            )
        assert mask.name is not None and query.dtype is not None
        heads, size = _heads_and_size(query)
        kv_heads, _ = _heads_and_size(keys.inputs[1])
        op, integers = self.make.op, self.make.integers
        scale = float_attribute(node, "scale") or size**-0.5
        scaled = op("Mul", query, self.make.constant(scale, query.dtype))
        # the queries that share a head of the cache as rows of one product
        grouped = op("Reshape", scaled, integers(1, kv_heads, -1, size))
        masks = (mask, self.edit.input(_MASKS[mask.name]))
        softcap = float_attribute(node, "softcap")
        scores = []
        for rows, bias in zip((keys.inputs[0], keys.inputs[1]), masks, strict=True):
            product = op("MatMul", grouped, op("Transpose", rows, perm=[0, 1, 3, 2]))
            apart = self.make.cast(op("Reshape", product, integers(1, heads, -1, 0)), SINGLE,
                                   query.dtype)  # fmt: skip
            if softcap:
                bound = self.make.constant(softcap, SINGLE)
                apart = op("Mul", op("Tanh", op("Div", apart, bound)), bound)
            scores.append(op("Add", apart, self._single_mask(bias)))
        weights = op("Softmax", op("Concat", *scores, axis=-1), axis=-1)
        weights = self.make.cast(weights, query.dtype, SINGLE)
        grouped_weights = op("Reshape", weights, integers(1, kv_heads, -1, 0))
        zero, slots, last = integers(0), self.edit.integers(_SLOTS, [0]), integers(-1)
        cached = op("Slice", grouped_weights, zero, slots, last)
        new = op("Slice", grouped_weights, slots, integers(_FAR), last)
        out = op(
            "Add",
            op("MatMul", cached, values.inputs[0]),
            op("MatMul", new, values.inputs[1]),
        )
        out = op("Reshape", out, integers(1, heads, -1, size))
        self.edit.replace(node.outputs[0], out)

    def _single_mask(self, mask: ir.Value) -> ir.Value:
        """A mask in float32, made once: scores are summed and normalised in that type."""
        if mask not in self._masks:
            self._masks[mask] = self.make.cast(mask, SINGLE)
        return self._masks[mask]

    def _return_rows(self) -> None:
        """In place of the updated caches, the new rows of all layers are one output."""
        rows: dict[str, ir.Value] = {}
        for value in [v for v in self.graph.outputs if "_cache_out." in str(v.name)]:
            node = producer_of(value, "TensorScatter")
            if node is None or node.inputs[1] is None or value.name is None:
                raise ExportError(
                    f"{value.name} isn't written by a TensorScatter; it has no form for TensorRT"
                )
            rows[value.name] = node.inputs[1]
            self.graph.outputs.remove(value)
        pairs = range(len(rows) // 2)
        parts = [rows[f"{kind}_cache_out.{layer}"] for layer in pairs for kind in "kv"]
        output = self.make.op("Concat", *parts, axis=0)
        shape = parts[0].shape
        assert shape is not None
        output.name, output.type = KV_ROWS, parts[0].type
        output.shape = ir.Shape([len(parts), shape[1], "T", shape[3]])
        self.graph.outputs.append(output)


def _fix_slots(graph: ir.Graph, slots: int) -> None:
    """Put a number in place of the free dimension S."""
    for value in (*graph.inputs, *graph.outputs, *(o for n in graph for o in n.outputs)):
        if value.shape is not None:
            dims = [slots if str(dim) == "S" else dim for dim in value.shape]
            value.shape = ir.Shape(dims)
    if _SLOTS in graph.initializers:
        number = ir.tensor([slots], dtype=ir.DataType.INT64, name=_SLOTS)
        graph.initializers[_SLOTS].const_value = number


def _stamp(model: ir.Model) -> None:
    """Declare opset and IR version, having checked every operator against the parser's table."""
    quantized = any(node.op_type == "DequantizeLinear" for node in model.graph)
    opset = COLUMNS_OPSET if quantized else ROWS_OPSET
    if quantized:
        _give_axes_as_inputs(model.graph)
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx") or not _parsed(node, opset):
            raise ExportError(
                f"operator {node.op_type} at {node.name} is not in opset {opset} of TensorRT's "
                "older parsers; this model needs TensorRT 10.15 or later"
            )
    model.graph.opset_imports[""] = opset
    model.ir_version = _IR_VERSIONS[opset]


def _give_axes_as_inputs(graph: ir.Graph) -> None:
    """Since opset 18 reductions take their axes as an input."""
    make = Decomposer(graph)
    for node in list(graph):
        if node.op_type.startswith("Reduce") and "axes" in node.attributes:
            axes = make.integers(*node.attributes["axes"].as_ints())
            others = {name: a for name, a in node.attributes.items() if name != "axes"}
            attributes = {name: attribute.value for name, attribute in others.items()}
            make.edit.replace(
                node.outputs[0], make.op(node.op_type, node.inputs[0], axes, **attributes)
            )
    make.edit.finish()


def _parsed(node: ir.Node, opset: int) -> bool:
    if node.op_type not in PARSER_OPERATORS:
        return False
    schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset)
    return set(node.attributes) <= set(schema.attributes) and len(node.inputs) <= schema.max_input


def _heads_and_size(value: ir.Value | None) -> tuple[int, int]:
    shape = value.shape if value is not None else None
    if shape is None or not isinstance(shape[1], int) or not isinstance(shape[3], int):
        raise ExportError(
            "an attention has an unknown number of heads; it has no form for TensorRT"
        )
    return shape[1], shape[3]
