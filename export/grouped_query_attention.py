"""Attention and TensorScatter as ``com.microsoft.GroupQueryAttention`` with an additive mask.

The kernel appends the step's rows to the cache in place (past and present share one buffer) and
reads only the used slots. Its input is rows of concatenated heads, ``(1, T, H * D)``; the canonical
graph swaps heads and tokens ahead of attention, and these swaps are taken out again.
"""

from __future__ import annotations

import onnx_ir as ir

from lade_edge.engines import ExportError, ModelSpec
from lade_edge.export.graph_edit import (
    GraphEditor,
    float_attribute,
    int_attribute,
    is_permutation,
    producer_of,
)

MICROSOFT = "com.microsoft"
_SWAP = (0, 2, 1, 3)
_PER_HEAD = ("RMSNormalization", "LayerNormalization", "Split")
_LAST = (-1, 3)
_HEAD_SIZE_UNIT = 8  # what the kernel's head size must be a multiple of


def use_grouped_query_attention(graph: ir.Graph, spec: ModelSpec) -> None:
    """Rewrite every attention of a canonical graph, in place.

    Args:
        graph: Canonical graph; the inputs ``seqlens_k`` and ``total_length`` replace
            ``write_index``, and masks cover the used slots only.
        spec: Shape of the model.

    Raises:
        ExportError: If the kernel doesn't take the head size, or an attention's keys don't come
            from a TensorScatter.
    """
    if spec.head_size % _HEAD_SIZE_UNIT:
        raise ExportError(
            f"{spec.model_type} has a head size of {spec.head_size}, onnxruntime's attention kernel "
            f"takes multiples of {_HEAD_SIZE_UNIT}; use --target canonical"
        )
    _Rewriter(graph, spec).run()


class _Rewriter:
    def __init__(self, graph: ir.Graph, spec: ModelSpec) -> None:
        self.edit = GraphEditor(graph)
        self.graph = graph
        self.spec = spec
        self._tables: dict[str, ir.Value] = {}
        self._moved: dict[ir.Node, list[ir.Value]] = {}

    def run(self) -> None:
        self._replace_inputs()
        for node in [n for n in self.graph if n.op_type == "Attention"]:
            self._attention(node)
        self.edit.finish()
        for node in [n for n in self.graph if n.op_type == "RotaryEmbedding" and not n.domain]:
            source = node.inputs[0]
            self.edit.replace(node.outputs[0], self._rotary(node, source, _heads(source)))
        at = [v.name for v in self.graph.inputs].index("write_index")
        del self.graph.inputs[at]
        self.edit.finish()

    def _replace_inputs(self) -> None:
        int32 = ir.TensorType(ir.DataType.INT32)
        for name in ("seqlens_k", "total_length"):
            self.graph.inputs.append(ir.Value(name=name, shape=ir.Shape([1]), type=int32))
        for value in self.graph.inputs:
            if value.name in ("attn_mask", "attn_mask_window"):
                value.shape = ir.Shape([1, 1, "T", "total"])

    def _attention(self, node: ir.Node) -> None:
        query, key, value, mask = node.inputs[:4]
        new_key, new_value = producer_of(key, "TensorScatter"), producer_of(value, "TensorScatter")
        if new_key is None or new_value is None:
            raise ExportError(
                f"attention {node.name} reads keys that no TensorScatter writes; it can't be "
                "lowered for onnxruntime, use --target canonical"
            )
        heads, size = _heads(query), self.spec.head_size
        edit = self.edit
        out, present_key, present_value = edit.emit(
            "GroupQueryAttention",
            [
                self._rows(query, heads),
                self._rows(new_key.inputs[1], self.spec.num_kv_heads),
                self._rows(new_value.inputs[1], self.spec.num_kv_heads),
                new_key.inputs[0],
                new_value.inputs[0],
                edit.input("seqlens_k"),
                edit.input("total_length"),
                None,
                None,
                None,
                mask,
            ],
            {
                "num_heads": heads,
                "kv_num_heads": self.spec.num_kv_heads,
                "scale": float_attribute(node, "scale"),
                "softcap": float_attribute(node, "softcap"),
                "do_rotary": 0,
            },
            domain=MICROSOFT,
            num_outputs=3,
        )
        out.shape, out.type = ir.Shape([1, "T", heads * size]), node.outputs[0].type
        edit.replace(new_key.outputs[0], present_key)
        edit.replace(new_value.outputs[0], present_value)
        self._return_rows(node.outputs[0], out, heads)

    def _rows(self, value: ir.Value | None, heads: int) -> ir.Value:
        """``(1, T, heads * D)`` with the content of ``(1, heads, T, D)``."""
        rotary = producer_of(value, "RotaryEmbedding")
        if rotary is not None:
            return self._rotary(rotary, self._rows(rotary.inputs[0], heads), heads)
        columns = heads * self.spec.head_size
        split = self._tokens_first(value)
        reshape = producer_of(split, "Reshape")
        whole = reshape.inputs[0] if reshape is not None else None
        if whole is not None and _columns(whole) == columns:
            return whole
        shape = self.edit.integers(f"shape.rows_{columns}", [1, -1, columns])
        (rows,) = self.edit.emit("Reshape", [split, shape])
        rows.shape, rows.type = ir.Shape([1, "T", columns]), split.type
        return rows

    def _tokens_first(self, value: ir.Value | None) -> ir.Value:
        """``(1, T, heads, D)`` with the content of ``(1, heads, T, D)``; what acts per head moves along."""
        assert value is not None
        node = value.producer()
        if is_permutation(node, _SWAP):
            assert node is not None and node.inputs[0] is not None
            return node.inputs[0]
        if (
            node is not None
            and node.op_type in _PER_HEAD
            and int_attribute(node, "axis", -1) in _LAST
        ):
            if node not in self._moved:
                self._moved[node] = self.edit.emit(
                    node.op_type,
                    [self._tokens_first(node.inputs[0]), *node.inputs[1:]],
                    dict(node.attributes),
                    num_outputs=len(node.outputs),
                )
            out = self._moved[node][list(node.outputs).index(value)]
        else:
            (out,) = self.edit.emit("Transpose", [value], {"perm": list(_SWAP)})
        assert value.shape is not None
        batch, heads, tokens, size = value.shape
        out.shape, out.type = ir.Shape([batch, tokens, heads, size]), value.type
        return out

    def _return_rows(self, heads_first: ir.Value, rows: ir.Value, heads: int) -> None:
        """Serve the readers of attention's 4-D output from its rows."""
        columns = heads * self.spec.head_size
        for swap in list(heads_first.consumers()):
            if not is_permutation(swap, _SWAP):
                continue
            for reader in list(swap.outputs[0].consumers()):
                if reader.op_type == "Reshape" and _columns(reader.outputs[0]) == columns:
                    reader.outputs[0].replace_all_uses_with(rows)
        if not any(
            reader.outputs[0].uses()
            for swap in heads_first.consumers()
            for reader in swap.outputs[0].consumers()
        ):
            return
        shape = self.edit.integers(
            f"shape.heads_{heads}_{self.spec.head_size}", [1, -1, heads, self.spec.head_size]
        )
        (split,) = self.edit.emit("Reshape", [rows, shape])
        (swapped,) = self.edit.emit("Transpose", [split], {"perm": list(_SWAP)})
        self.edit.replace(heads_first, swapped)

    def _rotary(self, node: ir.Node, source: ir.Value | None, heads: int) -> ir.Value:
        """Rotate rows or heads; row t of the tables is token t's, so their index is the slot."""
        assert source is not None
        attributes = {
            "num_heads": heads,
            "interleaved": int_attribute(node, "interleaved"),
            "rotary_embedding_dim": int_attribute(node, "rotary_embedding_dim"),
        }
        tables = [self._table(table) for table in node.inputs[1:3]]
        (out,) = self.edit.emit(
            "RotaryEmbedding",
            [source, self._step_index(), *tables],
            attributes,
            domain=MICROSOFT,
        )
        out.shape, out.type = source.shape, source.type
        return out

    def _table(self, table: ir.Value | None) -> ir.Value:
        """``(T, D / 2)`` from the traced ``(1, T, D / 2)``."""
        assert table is not None and table.name is not None
        if table.name not in self._tables:
            axis = self.edit.integers("axis.batch", [0])
            (self._tables[table.name],) = self.edit.emit("Squeeze", [table, axis])
        return self._tables[table.name]

    def _step_index(self) -> ir.Value:
        """``(1, T)``: 0 .. T-1."""
        if "" not in self._tables:
            edit = self.edit
            scalar = ir.tensor(0, dtype=ir.DataType.INT64, name="index.zero")
            zero = edit.weight(scalar)
            one = edit.weight(ir.tensor(1, dtype=ir.DataType.INT64, name="index.one"))
            (shape,) = edit.emit("Shape", [edit.input("input_ids")], {"start": 1})
            (width,) = edit.emit("Squeeze", [shape])
            (steps,) = edit.emit("Range", [zero, width, one])
            (index,) = edit.emit("Unsqueeze", [steps, edit.integers("axis.batch", [0])])
            self._tables[""] = index
        return self._tables[""]


def _heads(value: ir.Value | None) -> int:
    count = value.shape[1] if value is not None and value.shape is not None else None
    if not isinstance(count, int):
        raise ExportError("an attention has an unknown number of heads; use --target canonical")
    return count


def _columns(value: ir.Value) -> int | None:
    if value.shape is None or len(value.shape) != 3:
        return None
    last = value.shape[2]
    return last if isinstance(last, int) else None
