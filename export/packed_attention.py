"""Attention that takes queries, keys and values as one projection makes them, and rotates them itself.

Saves the operators between projection and ``com.microsoft.GroupQueryAttention``: one Split and two
RotaryEmbedding a layer. The kernel looks a token's angle up by its position, in tables over all
positions and what a step may reach beyond them, which ONNX Runtime works out when it loads the graph.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import onnx_ir as ir

from lade_edge.engines import WIDEST_STEP, ModelSpec
from lade_edge.export.graph_edit import GraphEditor, int_attribute, producer_of

_MOST_TABLE_BYTES = 64 << 20
_HEAD_SIZE_UNIT = 16  # what the kernel's own rotation takes
_TABLE_UNIT = 8


@dataclass(frozen=True, slots=True)
class _Rotation:
    """One RotaryEmbedding ahead of attention.

    Attributes:
        source: Rows before it.
        tables: Cosines and sines, ``(T, D / 2)``.
        interleaved: Whether neighbours are rotated, not halves.
        rotated: Leading numbers of a head that are rotated; 0 for all.
    """

    source: ir.Value
    tables: tuple[ir.Value, ir.Value]
    interleaved: int
    rotated: int


def rotate_in_attention(graph: ir.Graph, spec: ModelSpec) -> None:
    """Move rotations into GroupQueryAttention, and splits where all of them feed it, in place.

    Left as it is: what the kernel's own rotation doesn't take, by head size or by table.

    Args:
        graph: Graph with ``com.microsoft.GroupQueryAttention`` and RotaryEmbedding.
        spec: Shape of the model.
    """
    _Rewriter(graph, spec).run()


class _Rewriter:
    def __init__(self, graph: ir.Graph, spec: ModelSpec) -> None:
        self.edit = GraphEditor(graph)
        self.spec = spec
        self._whole: dict[ir.Value, ir.Value | None] = {}
        self._positions: ir.Value | None = None

    def run(self) -> None:
        if self.spec.head_size % _HEAD_SIZE_UNIT:
            return
        for node in [n for n in self.edit.graph if n.op_type == "GroupQueryAttention"]:
            self._rotate(node)
        self.edit.finish()

    def _rotate(self, node: ir.Node) -> None:
        query, key = _rotation(node.inputs[0]), _rotation(node.inputs[1])
        if query is None or key is None or not self._fits(query):
            return
        if dataclasses.replace(key, source=query.source) != query:
            return
        cos, sin = (self._over_all_positions(table) for table in query.tables)
        if cos is None or sin is None:
            return
        rows = [query.source, key.source, node.inputs[2]]
        whole = _split_in_order(rows)
        inputs = [whole, None, None] if whole is not None else rows
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        outputs = self.edit.emit(
            "GroupQueryAttention",
            [
                *inputs,
                *node.inputs[3:7],
                cos,
                sin,
                self.edit.input("position_ids"),
                node.inputs[10],
            ],
            {**attributes, "do_rotary": 1, "rotary_interleaved": query.interleaved},
            domain=node.domain,
            num_outputs=3,
        )
        for old, new in zip(node.outputs, outputs, strict=True):
            self.edit.replace(old, new)

    def _over_all_positions(self, table: ir.Value) -> ir.Value | None:
        """``(positions, D / 2)``: what the step's table is made by, applied to every position."""
        if table not in self._whole:
            self._whole[table] = self._copy(table, {})
        return self._whole[table]

    def _fits(self, rotation: _Rotation) -> bool:
        columns = (rotation.rotated or self.spec.head_size) // 2
        rows = self.spec.max_position + WIDEST_STEP
        return columns % _TABLE_UNIT == 0 and 2 * 4 * columns * rows <= _MOST_TABLE_BYTES

    def _copy(self, value: ir.Value, copies: dict[ir.Value, ir.Value | None]) -> ir.Value | None:
        """The same arithmetic on all positions in place of the step's; None if more goes into it."""
        if value.is_initializer():
            return value
        if value.is_graph_input():
            return self._all_positions() if value.name == "position_ids" else None
        if value not in copies:
            node = value.producer()
            if node is None or len(node.outputs) != 1:
                return None
            inputs = [None if v is None else self._copy(v, copies) for v in node.inputs]
            if any(
                new is None and old is not None
                for new, old in zip(inputs, node.inputs, strict=True)
            ):
                return None
            attributes = {name: attribute.value for name, attribute in node.attributes.items()}
            (copies[value],) = self.edit.emit(node.op_type, inputs, attributes, domain=node.domain)
        return copies[value]

    def _all_positions(self) -> ir.Value:
        """``(1, positions)``, made of constants only, so that nothing is left to do in a step."""
        if self._positions is None:
            edit = self.edit
            ends = [
                edit.weight(ir.tensor(number, dtype=ir.DataType.INT64, name=f"positions.{name}"))
                for name, number in (
                    ("first", 0), ("end", self.spec.max_position + WIDEST_STEP), ("stride", 1),
                )
            ]  # fmt: skip
            (row,) = edit.emit("Range", ends)
            (self._positions,) = edit.emit("Unsqueeze", [row, edit.integers("axis.batch", [0])])
        return self._positions


def _rotation(value: ir.Value | None) -> _Rotation | None:
    node = producer_of(value, "RotaryEmbedding")
    if node is None:
        return None
    source, _, cos, sin = node.inputs
    assert source is not None and cos is not None and sin is not None
    return _Rotation(
        source,
        (cos, sin),
        int_attribute(node, "interleaved"),
        int_attribute(node, "rotary_embedding_dim"),
    )


def _split_in_order(rows: list[ir.Value | None]) -> ir.Value | None:
    """What a Split makes these three of, if it makes nothing else."""
    node = producer_of(rows[0], "Split")
    if node is None or list(node.outputs) != rows or int_attribute(node, "axis") != -1:
        return None
    return node.inputs[0]
