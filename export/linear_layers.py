"""Linear layers and token tables of a lowered graph: where they are and what they multiply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.graph_edit import int_attribute, is_permutation, is_weight, producer_of

_ROUTING = frozenset({"Softmax", "TopK"})


@dataclass(frozen=True, slots=True)
class Linear:
    """A product of rows with a stored matrix.

    Attributes:
        node: ``MatMul``, or ``FusedMatMul`` with ``transB``; a tied head may have a Transpose between.
        source: ``(1, rows, K)``, the value multiplied.
        weight: The stored matrix, ``(K, N)``, or ``(N, K)`` where it is a turned one.
        turned: Whether it is stored as ``(N, K)``, the layout of a token table.
    """

    node: ir.Node
    source: ir.Value
    weight: ir.Value
    turned: bool

    @property
    def name(self) -> str:
        """Name of the stored matrix."""
        return str(self.weight.name)

    @property
    def result(self) -> ir.Value:
        """``(1, rows, N)``."""
        return self.node.outputs[0]

    def matrix(self) -> Float32Array:
        """``(K, N)``; may be a view."""
        stored = stored_array(self.weight)
        return stored.T if self.turned else stored


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The look-up of token embeddings.

    Attributes:
        node: ``Gather`` of rows by ``input_ids``.
        weight: ``(V, K)``; the same value as a linear layer's where the LM head is tied.
    """

    node: ir.Node
    weight: ir.Value


def find_linears(graph: ir.Graph) -> list[Linear]:
    """Products with a stored float32 matrix, in graph order.

    A mixture's router stays out: it is small, and its result picks experts.
    """
    return list(_linears(graph))


def _linears(graph: ir.Graph) -> Iterator[Linear]:
    for node in graph:
        if node.op_type not in ("MatMul", "FusedMatMul"):
            continue
        source, weight = node.inputs[:2]
        turned = node.op_type == "FusedMatMul"
        if turned and not int_attribute(node, "transB"):
            continue
        transpose = producer_of(weight, "Transpose")
        if transpose is not None and is_permutation(transpose, (1, 0)):
            weight, turned = transpose.inputs[0], not turned
        if source is None or weight is None or not is_weight(weight, rank=2):
            continue
        if weight.dtype != ir.DataType.FLOAT or _routes(node.outputs[0]):
            continue
        yield Linear(node=node, source=source, weight=weight, turned=turned)


def _routes(value: ir.Value) -> bool:
    readers = {node.op_type for node in value.consumers()}
    return bool(readers & _ROUTING) and not value.is_graph_output()


def find_token_table(graph: ir.Graph) -> TokenTable | None:
    """The float32 table that ``input_ids`` index, if the graph has one and looks it up once."""
    found = [
        node
        for node in graph
        if node.op_type == "Gather"
        and is_weight(node.inputs[0], rank=2)
        and _is_input_ids(node.inputs[1])
        and int_attribute(node, "axis") == 0
    ]
    if len(found) != 1:
        return None
    weight = found[0].inputs[0]
    assert weight is not None
    return TokenTable(found[0], weight) if weight.dtype == ir.DataType.FLOAT else None


def is_head_input(value: ir.Value) -> bool:
    """Whether the value is what the LM head reads: hidden states of the wanted rows."""
    rows = producer_of(value, "Gather")
    return rows is not None and rows.inputs[1] is not None and rows.inputs[1].name == "logit_rows"


def _is_input_ids(value: ir.Value | None) -> bool:
    reshape = producer_of(value, "Reshape")  # GPT-2 flattens a batch of one
    value = reshape.inputs[0] if reshape is not None else value
    return value is not None and value.name == "input_ids"


def has_one_reader(value: ir.Value | None) -> bool:
    """Whether exactly one input of one node reads the value."""
    return value is not None and len(value.uses()) == 1


def by_source(linears: Sequence[Linear]) -> dict[ir.Value, list[Linear]]:
    """Layers that read the same value, together."""
    readers: dict[ir.Value, list[Linear]] = {}
    for linear in linears:
        readers.setdefault(linear.source, []).append(linear)
    return readers


def read_instead(old: ir.Value, new: ir.Value) -> None:
    """Let the readers of ``old`` read ``new``, but for those that ``new`` is made by."""
    makers = {new.producer()}
    waiting = list(makers)
    while waiting:
        node = waiting.pop()
        for value in node.inputs if node is not None else ():
            maker = value.producer() if value is not None and value is not old else None
            if maker is not None and maker not in makers:
                makers.add(maker)
                waiting.append(maker)
    for node, index in list(old.uses()):
        if node not in makers:
            node.replace_input_with(index, new)


def store_matrix(linear: Linear, matrix: npt.NDArray[np.float32]) -> None:
    """Give a layer another matrix ``(K, N)``."""
    store_array(linear.weight, matrix.T if linear.turned else matrix)


def stored_array(value: ir.Value) -> Float32Array:
    """Content of a stored float32 tensor."""
    assert value.const_value is not None
    content: Float32Array = value.const_value.numpy()
    return content


def store_array(value: ir.Value, content: npt.NDArray[np.float32]) -> None:
    """Give a stored tensor another content of the same shape."""
    value.const_value = ir.tensor(np.ascontiguousarray(content, np.float32), name=value.name)
