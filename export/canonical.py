"""From the raw trace to the canonical graph: weights under their own names, norms and rotary fused.

Every pass only replaces operators by equal ones of the standard set (RMSNormalization and
RotaryEmbedding of opset 23, LayerNormalization, Gelu), so the result still is what any ONNX runtime
can run.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
from onnxscript import optimizer
from onnxscript.rewriter import pattern

from lade_edge.export.graph_edit import (
    GraphEditor,
    float_attribute,
    int_attribute,
    is_weight,
    producer_of,
    sole_consumer,
)
from lade_edge.export.normalization import fold_scale_offsets, fuse_norms
from lade_edge.export.rotary import fuse_rotary

_FOLD_LIMIT = 1024  # elements: shapes and scalars, never a weight, which would lose its name


def canonicalise(model: ir.Model) -> None:
    """Turn the raw trace into the canonical graph, in place.

    Args:
        model: From `tracing.trace`.
    """
    name_weights(model)
    store_transposed_weights(model)
    fold_scale_offsets(model.graph)
    _optimise(model)
    use_matmul_for_flat_gemm(model.graph)
    fuse_norms(model)
    fuse_rotary(model.graph)
    _RULES.apply_to_model(model)
    _optimise(model)


def use_matmul_for_flat_gemm(graph: ir.Graph) -> None:
    """GPT-2's Conv1D flattens tokens into a Gemm and splits them again; a MatMul takes them as is."""
    edit = GraphEditor(graph)
    for node in [n for n in graph if n.op_type == "Gemm" and len(n.inputs) == 3]:
        flat, weight, bias = node.inputs
        flatten = producer_of(flat, "Reshape")
        split = sole_consumer(node.outputs[0], "Reshape")
        if flatten is None or split is None or not is_weight(weight, rank=2):
            continue
        whole = split.outputs[0]
        if (
            not _is_plain(node)
            or whole.shape is None
            or len(whole.shape) != 3
            or whole.shape[0] != 1
        ):
            continue
        assert weight is not None and weight.shape is not None and flatten.inputs[0] is not None
        tokens = flatten.inputs[0]
        columns = weight.shape[0]
        if tokens.shape is None or len(tokens.shape) != 3 or tokens.shape[2] != columns:
            shape = edit.integers(f"shape.rows_{columns}", [1, -1, int(columns)])
            (tokens,) = edit.emit("Reshape", [flatten.inputs[0], shape])
            tokens.shape, tokens.type = ir.Shape([1, whole.shape[1], columns]), whole.type
        (product,) = edit.emit("MatMul", [tokens, weight])
        product.shape, product.type = whole.shape, whole.type
        (out,) = edit.emit("Add", [product, bias])
        edit.replace(whole, out)
    edit.finish()


def _is_plain(gemm: ir.Node) -> bool:
    """Whether it computes ``A @ B + C`` and nothing else."""
    transposed = int_attribute(gemm, "transA") or int_attribute(gemm, "transB")
    factors = [float_attribute(gemm, name, 1.0) for name in ("alpha", "beta")]
    return not transposed and factors == [1.0, 1.0]


def name_weights(model: ir.Model) -> None:
    """Give every weight the name it has in the source: drop the tracing wrapper's prefix."""
    for value in list(model.graph.initializers.values()):
        if value.name is not None and value.name.startswith("model."):
            name = value.name.removeprefix("model.")
            if name not in model.graph.initializers:
                value.name = name


def store_transposed_weights(model: ir.Model) -> None:
    """Store the weights of linear layers as MatMul reads them, ``(in, out)``.

    A weight that is read in its own layout as well (an embedding tied to the LM head) stays as it
    is, behind its Transpose, and is stored once.
    """
    graph = model.graph
    for node in list(graph):
        source = node.inputs[0] if node.inputs else None
        if node.op_type != "Transpose" or source is None or not source.is_initializer():
            continue
        users = list(source.consumers())
        if len(users) != 1 or source.const_value is None or len(source.const_value.shape) != 2:
            continue
        assert source.name is not None
        transposed = _transposed(source.const_value, source.name)
        value = ir.Value(
            name=source.name,
            shape=ir.Shape(transposed.shape),
            type=source.type,
            const_value=transposed,
        )
        node.outputs[0].replace_all_uses_with(value)
        graph.remove(node, safe=True)
        del graph.initializers[source.name]
        graph.register_initializer(value)


def _transposed(weight: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    rows, columns = weight.shape
    return ir.LazyTensor(
        lambda: ir.tensor(np.ascontiguousarray(weight.numpy().T), name=name),
        dtype=weight.dtype,
        shape=ir.Shape((columns, rows)),
        name=name,
    )


def _optimise(model: ir.Model) -> None:
    optimizer.optimize(
        model,
        input_size_limit=_FOLD_LIMIT,
        output_size_limit=_FOLD_LIMIT,
    )


class _WantedRows(pattern.RewriteRuleClassBase):  # type: ignore[misc]
    """``hidden[:, rows, :]`` is traced as a GatherND between two Transposes; Gather says it."""

    def pattern(self, op, hidden, rows, axis):  # type: ignore[no-untyped-def]
        first = op.Transpose(hidden, perm=[1, 0, 2])
        picked = op.GatherND(first, op.Unsqueeze(rows, axis))
        return op.Transpose(picked, perm=[1, 0, 2])

    def check(self, op, rows, **_):  # type: ignore[no-untyped-def]
        result = pattern.MatchResult()
        if rows.shape is None or len(rows.shape) != 1:
            return result.fail("rows is not a vector", rows)
        return result

    def rewrite(self, op, hidden, rows, **_):  # type: ignore[no-untyped-def]
        return op.Gather(hidden, rows, axis=1)


class _TanhGelu(pattern.RewriteRuleClassBase):  # type: ignore[misc]
    """GPT-2's own spelling of the tanh approximation of Gelu."""

    def pattern(self, op, x, half, cubic, slope):  # type: ignore[no-untyped-def]
        cube = op.Pow(x, 3.0)
        inner = op.Mul(op.Add(x, op.Mul(cube, cubic)), slope)
        return op.Mul(op.Mul(x, half), op.Add(op.Tanh(inner), 1.0))

    def check(self, op, half, cubic, slope, **_):  # type: ignore[no-untyped-def]
        result = pattern.MatchResult()
        for value, expected in ((half, 0.5), (cubic, 0.044715), (slope, math.sqrt(2 / math.pi))):
            constant = ir.convenience.get_const_tensor(value)
            if constant is None or constant.size != 1:
                return result.fail("not a constant", value)
            if not math.isclose(float(constant.numpy()), expected, rel_tol=1e-6):
                return result.fail("another constant", value)
        return result

    def rewrite(self, op, x, **_):  # type: ignore[no-untyped-def]
        return op.Gelu(x, approximate="tanh")


_RULES = pattern.RewriteRuleSet([_WantedRows.rule(), _TanhGelu.rule()], commute=True)
