"""Moves outliers from activations into weights, so that eight bits hold both (SmoothQuant).

Channel j of a value x that linear layers read is divided by s_j and their row j multiplied by it.
The division costs nothing where it can be folded into what makes x: a norm's weight, the columns of
``up_proj`` behind a gate, or, since attention only mixes rows, those of ``v_proj``. A tied LM head
carries its factors into the token table, whose look-up divides by them again. The float result
stays the same.

s_j = |x_j|^a / |w_j|^(1 - a) (Xiao et al., 2022, arXiv:2211.10438), where |.| is the largest or the
root mean square; kind and a are chosen for each input by the rounding error on sampled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.calibration import InputStatistics
from lade_edge.export.graph_edit import (
    GraphEditor,
    int_attribute,
    int_list,
    is_weight,
    producer_of,
)
from lade_edge.export.linear_layers import (
    Linear,
    TokenTable,
    by_source,
    has_one_reader,
    is_head_input,
    read_instead,
    store_array,
    store_matrix,
    stored_array,
)
from lade_edge.export.quantize_weights import rounding_error
from lade_edge.export.rotation import rotate_rows, some_columns

STRENGTHS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_NORMS = {
    "SimplifiedLayerNormalization": 1,
    "SkipSimplifiedLayerNormalization": 2,
    "LayerNormalization": 1,
}  # the operator's first input that is a parameter
_SMALLEST = 1e-5
_WORTH = 0.5  # of the squared error, at which a rotation is worth its time in every step

Fold = Callable[[Float32Array], None]
Measure = Callable[[Float32Array], Float32Array]  # per channel, from all of them


@dataclass(frozen=True, slots=True)
class Smoothing:
    """What `smooth` did.

    Attributes:
        smoothed: Inputs that were rescaled.
        to_rotate: Inputs to rotate now.
    """

    smoothed: int
    to_rotate: set[ir.Value]


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of a linear layer that make a value.

    Attributes:
        linear: The layer.
        start: First column.
        count: Number of columns.
        bias: Its stored bias ``(N,)``, if one is added.
    """

    linear: Linear
    start: int
    count: int
    bias: ir.Value | None

    def divide(self, by: Float32Array) -> None:
        """Divide the columns, and the bias with them."""
        part = slice(self.start, self.start + self.count)
        matrix = np.array(self.linear.matrix())
        matrix[:, part] /= by
        store_matrix(self.linear, matrix)
        if self.bias is not None:
            bias = np.array(stored_array(self.bias))
            bias[part] /= by
            store_array(self.bias, bias)


def smooth(
    graph: ir.Graph,
    linears: Sequence[Linear],
    table: TokenTable | None,
    statistics: Mapping[str, InputStatistics],
    rotatable: Collection[ir.Value] = (),
) -> Smoothing:
    """Rescale every input that allows it and gains by it, in place.

    Args:
        graph: Lowered float32 graph.
        linears: Its linear layers.
        table: Its token table.
        statistics: What went into each layer, by the name of its source.
        rotatable: Inputs that may be rotated afterwards.

    Returns:
        What was done, and which inputs gain enough by a rotation; theirs are the best factors for it.
    """
    smoother = _Smoother(graph, linears, table)
    smoothed = 0
    to_rotate = set()
    for source, group in by_source(linears).items():
        seen = statistics.get(source.name or "")
        if seen is None:
            continue
        rescale, spread = smoother.rescaling(source, group)
        factor, error = _best_factor(seen, group, spread, rotated=False)
        if source in rotatable:
            other, rotated_error = _best_factor(seen, group, spread, rotated=True)
            if rotated_error < _WORTH * error:
                factor = other
                to_rotate.add(source)
        if rescale is not None and factor is not None:
            rescale(factor)
            smoothed += 1
    smoother.edit.finish()
    return Smoothing(smoothed, to_rotate)


class _Smoother:
    def __init__(
        self, graph: ir.Graph, linears: Sequence[Linear], table: TokenTable | None
    ) -> None:
        self.edit = GraphEditor(graph)
        self._results = {linear.result: linear for linear in linears}
        self._table = table

    def rescaling(
        self, source: ir.Value, group: list[Linear]
    ) -> tuple[Fold | None, Measure | None]:
        """What rescales an input and the layers that read it, and how channels share a factor."""
        tied = [n for n in group if self._table is not None and n.weight is self._table.weight]
        if (
            len(source.uses()) != len(group)
            or source.is_graph_output()
            or any(len(n.weight.uses()) != 1 + (n in tied) for n in group)
        ):
            return None, None
        divide, spread = self._fold_of(source)
        if divide is None:
            return None, None

        def rescale(factor: Float32Array) -> None:
            divide(factor)
            for linear in group:
                store_matrix(linear, linear.matrix() * factor[:, None])
            if tied:
                self._divide_look_up(factor)

        return rescale, spread

    def _fold_of(self, source: ir.Value) -> tuple[Fold | None, Measure]:
        """What divides the channels of ``source``, and how channels share a factor."""
        wanted = source.producer()
        if wanted is not None and is_head_input(source):
            rows = wanted.inputs[0]
            if rows is None or not has_one_reader(rows) or not _is_norm(rows):
                return None, _alone
            source = rows
        if _is_norm(source):
            return self._norm_parameters(source), _alone
        product = producer_of(source, "Mul")
        if product is not None and product.inputs[0] is not product.inputs[1]:
            for value in reversed(product.inputs):
                columns = self._columns_behind(value)
                if columns is not None:
                    return columns.divide, _alone
        attention = producer_of(source, "GroupQueryAttention")
        if attention is not None:
            columns = self._values_behind(attention)
            if columns is not None:
                return _values_of(columns, attention)
        return None, _alone

    def _values_behind(self, attention: ir.Node) -> _Columns | None:
        """The columns that make the values: an input of their own, or the end of a whole projection."""
        if attention.inputs[2] is not None:
            return self._columns_behind(attention.inputs[2])
        whole = self._columns_behind(attention.inputs[0])
        if whole is None:
            return None
        kv_heads = int_attribute(attention, "kv_num_heads")
        head_size = whole.count // (int_attribute(attention, "num_heads") + 2 * kv_heads)
        count = kv_heads * head_size
        return replace(whole, start=whole.start + whole.count - count, count=count)

    def _norm_parameters(self, normed: ir.Value) -> Fold | None:
        node = normed.producer()
        assert node is not None
        parameters = [value for value in node.inputs[_NORMS[node.op_type] :] if value is not None]
        if not all(is_weight(v, rank=1) and has_one_reader(v) for v in parameters):
            return None

        def divide(factor: Float32Array) -> None:
            for value in parameters:
                store_array(value, stored_array(value) / factor)

        return divide

    def _columns_behind(self, value: ir.Value | None) -> _Columns | None:
        """The columns that make ``value`` and nothing else."""
        if value is None or len(value.uses()) != 1 or value.is_graph_output():
            return None
        start, count = 0, None
        node = value.producer()
        if node is not None and node.op_type == "Split" and int_attribute(node, "axis") in (-1, 2):
            sizes = int_list(node.inputs[1]) if len(node.inputs) > 1 else None
            if sizes is None:
                return None
            index = list(node.outputs).index(value)
            start, count = sum(sizes[:index]), sizes[index]
            value = node.inputs[0]
            node = value.producer() if value is not None else None
        bias = None
        if node is not None and node.op_type == "Add":
            biases = [v for v in node.inputs if v is not None and is_weight(v, rank=1)]
            others = [v for v in node.inputs if v is not None and v not in biases]
            if len(biases) != 1 or not has_one_reader(biases[0]) or not has_one_reader(value):
                return None
            bias, value = biases[0], others[0]
        linear = self._results.get(value) if value is not None else None
        if linear is None or not has_one_reader(value) or not has_one_reader(linear.weight):
            return None
        width = linear.matrix().shape[1]
        return _Columns(linear, start, width if count is None else count, bias)

    def _divide_look_up(self, factor: Float32Array) -> None:
        """Token embeddings out of a table that carries the LM head's factors."""
        assert self._table is not None
        looked_up = self._table.node.outputs[0]
        inverse = self.edit.floats("token_table.inverse", np.float32(1) / factor)
        (plain,) = self.edit.emit("Mul", [looked_up, inverse])
        plain.shape, plain.type = looked_up.shape, looked_up.type
        read_instead(looked_up, plain)


def _values_of(columns: _Columns, attention: ir.Node) -> tuple[Fold, Measure]:
    """Columns of v ahead of attention: heads that share a key-value head share its factors."""
    kv_heads = int_attribute(attention, "kv_num_heads")
    shared = int_attribute(attention, "num_heads") // kv_heads
    size = columns.count // kv_heads

    def spread(channels: Float32Array) -> Float32Array:
        largest = channels.reshape(kv_heads, shared, size).max(axis=1, keepdims=True)
        every: Float32Array = np.repeat(largest, shared, axis=1).reshape(-1)
        return every

    def divide(factor: Float32Array) -> None:
        columns.divide(factor.reshape(kv_heads, shared, size)[:, 0].reshape(-1))

    return divide, spread


def _best_factor(
    seen: InputStatistics, group: list[Linear], spread: Measure | None, *, rotated: bool
) -> tuple[Float32Array | None, float]:
    """The factors with the least rounding error, None if no factors do better, and the error.

    Args:
        seen: What the layers read.
        group: The layers.
        spread: How channels share a factor; None where none can be had.
        rotated: Judge the error behind a rotation.
    """
    matrices = [linear.matrix() for linear in group]
    some = np.concatenate([some_columns(matrix) for matrix in matrices], axis=1)

    def error(rows: Float32Array, matrix: Float32Array) -> float:
        if rotated:
            rows, matrix = rotate_rows(rows.T).T, rotate_rows(matrix)
        return rounding_error(rows, matrix)

    best, least = None, error(seen.sample, some)
    for factor in _candidates(seen, matrices, spread) if spread is not None else ():
        found = error(seen.sample / factor, some * factor[:, None])
        if found < least:
            best, least = factor, found
    return best, least


def _candidates(
    seen: InputStatistics, matrices: list[Float32Array], spread: Measure
) -> Iterator[Float32Array]:
    largest = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    squares = np.mean([np.square(matrix).mean(axis=1) for matrix in matrices], axis=0)
    typical = np.sqrt(np.square(seen.sample).mean(axis=0))
    for activations, weights in ((seen.largest, largest), (typical, np.sqrt(squares))):
        x = np.log(np.maximum(spread(activations), _SMALLEST))
        w = np.log(np.maximum(spread(weights), _SMALLEST))
        for strength in STRENGTHS:
            logarithm = strength * x - (1 - strength) * w
            yield np.exp(logarithm - logarithm.mean()).astype(np.float32)


def _alone(channels: Float32Array) -> Float32Array:
    return channels


def _is_norm(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in _NORMS and node.outputs[0] is value
