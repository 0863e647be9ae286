"""From the raw trace to the canonical graph: weights under their own names, norms and rotary fused.

Every pass only replaces operators by equal ones of the standard set (RMSNormalization and
RotaryEmbedding of opset 23), so the result still is what any ONNX runtime can run.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnxscript import optimizer
from onnxscript.rewriter import pattern
from onnxscript.rewriter.rules.fusion import _rms_normalization, _rotary_embedding

_FOLD_LIMIT = 1024  # elements: shapes and scalars, never a weight, which would lose its name


def canonicalise(model: ir.Model) -> None:
    """Turn the raw trace into the canonical graph, in place.

    Args:
        model: From `tracing.trace`.
    """
    name_weights(model)
    store_transposed_weights(model)
    _optimise(model)
    _rms_normalization.fuse_rms_normalization(model)
    _rotary_embedding.fuse_rotary_embedding(model)
    _rotary_embedding.fuse_partial_rotary_embedding(model)
    _ROW_RULES.apply_to_model(model)
    _optimise(model)


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


_ROW_RULES = pattern.RewriteRuleSet([_WantedRows.rule()])
