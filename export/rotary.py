"""Rotary position embeddings: the traced arithmetic as the standard ``RotaryEmbedding`` (opset 23).

What is traced is ``x * cos + turned(x) * sin``, where ``turned`` swaps the two halves of a head, or
the neighbours in each pair, and negates one side. The tables are as wide as a head and say
everything twice; the operator takes them once.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from lade_edge.export.graph_edit import GraphEditor, int_list, is_weight, producer_of

_LAST = (-1, 3)  # of the four axes: batch, heads, tokens, head size


@dataclass(frozen=True, slots=True)
class _Turned:
    """The value whose halves or pairs were swapped.

    Attributes:
        source: ``(1, H, T, D)``.
        interleaved: Whether neighbours are swapped, not halves.
    """

    source: ir.Value
    interleaved: bool


def fuse_rotary(graph: ir.Graph) -> None:
    """Replace every rotary embedding in the graph, whole or partial, in place."""
    _Fusion(graph).run()


class _Fusion:
    def __init__(self, graph: ir.Graph) -> None:
        self.edit = GraphEditor(graph)
        self._tables: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        for add in [node for node in self.edit.graph if node.op_type == "Add"]:
            for straight, turned in (add.inputs, add.inputs[::-1]):
                if self._fuse(add, straight, turned):
                    break
        self.edit.finish()

    def _fuse(self, add: ir.Node, straight: ir.Value | None, turned: ir.Value | None) -> bool:
        """Try one order of the two products of a sum."""
        left, right = producer_of(straight, "Mul"), producer_of(turned, "Mul")
        if left is None or right is None:
            return False
        for swapped, sin in (right.inputs, right.inputs[::-1]):
            match = _turned(swapped)
            if match is None or match.source not in left.inputs:
                continue
            cos = next((v for v in left.inputs if v is not match.source), None)
            tables = [self._half_table(table, match.interleaved) for table in (cos, sin)]
            if tables[0] is None or tables[1] is None:
                return False
            self._replace(add.outputs[0], match, tables)
            return True
        return False

    def _replace(self, whole: ir.Value, match: _Turned, tables: list[ir.Value | None]) -> None:
        source, rotated = match.source, 0
        concat = _sole_concat(whole)
        full = _split_off(source, concat) if concat is not None else None
        if full is not None and concat is not None and source.shape is not None:
            rotated, source, whole = int(source.shape[3]), full, concat.outputs[0]
        assert source.shape is not None
        attributes = {
            "interleaved": int(match.interleaved),
            "num_heads": source.shape[1],
            "rotary_embedding_dim": rotated,
        }
        (out,) = self.edit.emit("RotaryEmbedding", [source, *tables], attributes)
        self.edit.replace(whole, out)

    def _half_table(self, table: ir.Value | None, interleaved: bool) -> ir.Value | None:
        """``(1, T, D / 2)``: the table without its repetitions, or None if it isn't known to have any."""
        if table is None:
            return None
        if table not in self._tables:
            half = self._without_repeats(table, interleaved)
            if half is None:
                return None
            if half.shape is not None and len(half.shape) == 4:
                half = self._emit("Squeeze", [half, self.edit.integers("axis.heads", [1])], half)
                assert half.shape is not None
                half.shape = ir.Shape([half.shape[0], *half.shape[2:]])
            self._tables[table] = half
        return self._tables[table]

    def _without_repeats(self, value: ir.Value | None, interleaved: bool) -> ir.Value | None:
        """Follow a table to where it is repeated, and do on one copy what was done on all."""
        if value is None or value.producer() is None:
            return None
        source = _repeated_pairs(value) if interleaved else _repeated_halves(value)
        if source is not None:
            return source
        node = value.producer()
        assert node is not None
        if node.op_type == "Unsqueeze" and int_list(node.inputs[1]) == [1]:
            return self._without_repeats(node.inputs[0], interleaved)
        if node.op_type in ("Cos", "Sin"):
            half = self._without_repeats(node.inputs[0], interleaved)
            return None if half is None else self._emit(node.op_type, [half], half)
        if node.op_type == "Mul":  # the attention scaling of yarn and longrope
            for angles, factor in (node.inputs, node.inputs[::-1]):
                if is_weight(factor) and factor.const_value.size == 1:
                    half = self._without_repeats(angles, interleaved)
                    return None if half is None else self._emit("Mul", [half, factor], half)
        return None

    def _emit(self, op_type: str, inputs: list[ir.Value | None], like: ir.Value) -> ir.Value:
        (out,) = self.edit.emit(op_type, inputs)
        out.shape, out.type = like.shape, like.type
        return out


def _turned(value: ir.Value | None) -> _Turned | None:
    return _turned_halves(value) or _turned_pairs(value)


def _turned_halves(value: ir.Value | None) -> _Turned | None:
    """``concat(-x[D/2:], x[:D/2])``."""
    concat = producer_of(value, "Concat")
    if concat is None or len(concat.inputs) != 2 or not _on_last(concat):
        return None
    negated = producer_of(concat.inputs[0], "Neg")
    low = producer_of(concat.inputs[1], "Slice")
    high = producer_of(negated.inputs[0], "Slice") if negated is not None else None
    if low is None or high is None or low.inputs[0] is not high.inputs[0]:
        return None
    size = _last_size(low.inputs[0])
    if size is None or _range(low) != (0, size // 2, 1) or _range(high) != (size // 2, size, 1):
        return None
    return _Turned(low.inputs[0], interleaved=False)


def _turned_pairs(value: ir.Value | None) -> _Turned | None:
    """``stack(-x[1::2], x[::2])``, flattened."""
    reshape = producer_of(value, "Reshape")
    concat = producer_of(reshape.inputs[0], "Concat") if reshape is not None else None
    if concat is None or len(concat.inputs) != 2:
        return None
    first, second = (producer_of(side, "Unsqueeze") for side in concat.inputs)
    if first is None or second is None:
        return None
    if any(int_list(side.inputs[1]) not in ([-1], [4]) for side in (first, second)):
        return None
    negated = producer_of(first.inputs[0], "Neg")
    even = producer_of(second.inputs[0], "Slice")
    odd = producer_of(negated.inputs[0], "Slice") if negated is not None else None
    if even is None or odd is None or even.inputs[0] is not odd.inputs[0]:
        return None
    size = _last_size(even.inputs[0])
    if size is None or _range(even) != (0, size, 2) or _range(odd) != (1, size, 2):
        return None
    return _Turned(even.inputs[0], interleaved=True)


def _repeated_halves(value: ir.Value) -> ir.Value | None:
    """``x`` of ``concat(x, x)``."""
    concat = producer_of(value, "Concat")
    if concat is None or len(concat.inputs) != 2 or concat.inputs[0] is not concat.inputs[1]:
        return None
    return concat.inputs[0]


def _repeated_pairs(value: ir.Value) -> ir.Value | None:
    """``x`` of ``repeat_interleave(x, 2)``, traced as Unsqueeze, Expand, Reshape."""
    reshape = producer_of(value, "Reshape")
    expand = producer_of(reshape.inputs[0], "Expand") if reshape is not None else None
    column = producer_of(expand.inputs[0], "Unsqueeze") if expand is not None else None
    if expand is None or column is None or _last_size(expand.outputs[0]) != 2:
        return None
    size, whole = _last_size(column.inputs[0]), _last_size(value)
    if size is None or whole != 2 * size or _last_size(column.outputs[0]) != 1:
        return None
    return column.inputs[0]


def _sole_concat(value: ir.Value) -> ir.Node | None:
    users = list(value.consumers())
    if len(users) != 1 or users[0].op_type != "Concat" or len(users[0].inputs) != 2:
        return None
    return users[0] if users[0].inputs[0] is value and _on_last(users[0]) else None


def _split_off(rotated: ir.Value, concat: ir.Node) -> ir.Value | None:
    """The whole heads, if only their first columns were rotated and the rest was put back."""
    first, rest = rotated.producer(), producer_of(concat.inputs[1], "Slice")
    if first is None or rest is None or first.op_type != "Slice":
        return None
    full, columns = first.inputs[0], _last_size(rotated)
    size = _last_size(full)
    if full is None or full is not rest.inputs[0] or columns is None or size is None:
        return None
    matches = _range(first) == (0, columns, 1) and _range(rest) == (columns, size, 1)
    return full if matches else None


def _range(node: ir.Node) -> tuple[int, int, int] | None:
    """Start, end and step of a Slice along the last of four axes."""
    parts = [int_list(value) for value in node.inputs[1:]]
    if len(parts) != 4 or any(part is None or len(part) != 1 for part in parts):
        return None
    start, end, axis, step = (part[0] for part in parts if part is not None)
    size = _last_size(node.inputs[0])
    if size is None or axis not in _LAST:
        return None
    return start, min(end, size), step


def _on_last(concat: ir.Node) -> bool:
    return concat.attributes["axis"].as_int() in _LAST


def _last_size(value: ir.Value | None) -> int | None:
    if value is None or value.shape is None or not len(value.shape):
        return None
    last = value.shape[-1]
    return last if isinstance(last, int) else None
