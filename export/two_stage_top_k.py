"""The best tokens in two stages: ONNX Runtime's TopK goes through a whole row of logits value by value.

The row is cut into chunks, whose largest values a vectorised ReduceMax finds. The k best logits lie in
the k chunks with the largest ones, and TopK only has to look at these.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from lade_edge.export.graph_edit import GraphEditor

_CHUNK = 64  # logits; the nearest size that divides the vocabulary is taken
_SIZES = range(16, 257)


def find_best_in_two_stages(graph: ir.Graph) -> None:
    """Rewrite the TopK behind ``top_logits`` and ``top_ids``, in place.

    The results are the same but for ties behind the first place, which may come in another order; a tie
    for the first place still goes to the lower id. Left as it is: a vocabulary that no chunk divides, or
    a small one.

    Args:
        graph: Lowered graph; ``logits`` is ``(1, R, V)`` float32.
    """
    node = next(value.producer() for value in graph.outputs if value.name == "top_ids")
    assert node is not None and node.op_type == "TopK"
    logits, wanted = node.inputs
    assert logits is not None and logits.shape is not None
    vocab_size, top_k = int(logits.shape[-1]), int(node.outputs[0].shape[-1])
    chunk = _chunk(vocab_size, top_k)
    if chunk is None:
        return
    edit = GraphEditor(graph)
    last = edit.integers("axis.last", [-1])
    by_chunk = edit.integers("shape.chunks", [0, -1, vocab_size // chunk, chunk])
    (chunks,) = edit.emit("Reshape", [logits, by_chunk])
    (largest,) = edit.emit("ReduceMax", [chunks, last], {"keepdims": 0})
    _, best = edit.emit("TopK", [largest, wanted], {"axis": -1}, num_outputs=2)
    (column,) = edit.emit("Unsqueeze", [best, last])
    (first,) = edit.emit("Mul", [column, edit.integers("chunk.size", [chunk])])
    within = edit.integers("chunk.members", range(chunk))
    (members,) = edit.emit("Add", [first, within])
    (ids,) = edit.emit("Reshape", [members, edit.integers("shape.members", [0, -1, top_k * chunk])])
    (candidates,) = edit.emit("GatherElements", [logits, ids], {"axis": -1})
    top_logits, places = edit.emit("TopK", [candidates, wanted], {"axis": -1}, num_outputs=2)
    (top_ids,) = edit.emit("GatherElements", [ids, places], {"axis": -1})
    for old, new in zip(node.outputs, (top_logits, top_ids), strict=True):
        edit.replace(old, new)
    edit.finish()


def _chunk(vocab_size: int, top_k: int) -> int | None:
    """Size of chunks that divide the vocabulary into more of them than are wanted."""
    fitting = [n for n in _SIZES if vocab_size % n == 0 and vocab_size // n > 2 * top_k]
    return min(fitting, key=lambda size: abs(np.log(size / _CHUNK)), default=None)
