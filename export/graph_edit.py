"""Small edits on an ONNX graph: insert nodes, make constants, drop what nothing reads.

Nodes are appended and sorted once at the end of a lowering; until then order means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


class GraphEditor:
    """Edits one graph.

    Args:
        graph: Changed in place.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph

    def emit(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: dict[str, Any] | None = None,
        *,
        domain: str = "",
        num_outputs: int = 1,
    ) -> list[ir.Value]:
        """Add a node and return its outputs."""
        node = ir.node(
            op_type, inputs, attributes=attributes, domain=domain, num_outputs=num_outputs
        )
        self.graph.append(node)
        return list(node.outputs)

    def input(self, name: str) -> ir.Value:
        """The graph input of that name."""
        return next(value for value in self.graph.inputs if value.name == name)

    def integers(self, name: str, values: Sequence[int]) -> ir.Value:
        """An int64 vector as an initializer, made once per name."""
        if name not in self.graph.initializers:
            self.weight(ir.tensor(list(values), dtype=ir.DataType.INT64, name=name))
        return self.graph.initializers[name]

    def floats(self, name: str, values: npt.NDArray[np.float32]) -> ir.Value:
        """A float32 array as an initializer, made once per name."""
        if name not in self.graph.initializers:
            self.weight(ir.tensor(values, name=name))
        return self.graph.initializers[name]

    def weight(self, tensor: ir.TensorProtocol) -> ir.Value:
        """An initializer of the tensor's own name."""
        value = ir.Value(
            name=tensor.name,
            shape=ir.Shape(tensor.shape),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.graph.register_initializer(value)
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let every reader of ``old`` read ``new``; a graph output keeps its name and shape."""
        new.shape, new.type = old.shape, old.type
        if old.is_graph_output():
            name, old.name = old.name, None
            for index, output in enumerate(self.graph.outputs):
                if output is old:
                    self.graph.outputs[index] = new
            new.name = name
        old.replace_all_uses_with(new)

    def finish(self) -> None:
        """Drop nodes and weights nothing reads, and sort."""
        self.graph.sort()
        for node in reversed(list(self.graph)):
            if not any(out.uses() or out.is_graph_output() for out in node.outputs):
                self.graph.remove(node, safe=True)
        for name, value in list(self.graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del self.graph.initializers[name]


def producer_of(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The node that makes ``value``, if it is of this operator."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type else None


def sole_consumer(value: ir.Value, op_type: str) -> ir.Node | None:
    """The one node that reads ``value``, if it is of this operator."""
    users = list(value.consumers())
    return users[0] if len(users) == 1 and users[0].op_type == op_type else None


def is_weight(value: ir.Value | None, rank: int | None = None) -> bool:
    """Whether the value is a stored tensor (of this rank)."""
    if value is None or not value.is_initializer() or value.const_value is None:
        return False
    return rank is None or len(value.const_value.shape) == rank


def int_attribute(node: ir.Node, name: str, default: int = 0) -> int:
    """An integer attribute or its default."""
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else default


def float_attribute(node: ir.Node, name: str, default: float = 0.0) -> float:
    """A float attribute or its default."""
    attribute = node.attributes.get(name)
    return attribute.as_float() if attribute is not None else default


def is_permutation(node: ir.Node | None, order: Sequence[int]) -> bool:
    """Whether the node is a Transpose of this order."""
    if node is None or node.op_type != "Transpose" or "perm" not in node.attributes:
        return False
    return list(node.attributes["perm"].as_ints()) == list(order)


def int_list(value: ir.Value | None) -> list[int] | None:
    """The content of a stored vector of integers."""
    if value is None or value.const_value is None:
        return None
    return [int(number) for number in value.const_value.numpy().reshape(-1)]
