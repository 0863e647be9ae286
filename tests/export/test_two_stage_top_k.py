"""The best tokens in two stages are those of TopK, bit for bit, in the same order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lade_edge.export.two_stage_top_k import find_best_in_two_stages

K = 8


def session_of(vocab_size: int, *, rewrite: bool) -> tuple[object, set[str]]:
    import onnxruntime as ort

    logits = ir.Value(
        name="logits",
        shape=ir.Shape([1, "R", vocab_size]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    wanted = ir.Value(name="k", const_value=ir.tensor([K], dtype=ir.DataType.INT64, name="k"))
    node = ir.node("TopK", [logits, wanted], attributes={"axis": -1}, num_outputs=2)
    for value, name, kind in zip(
        node.outputs, ("top_logits", "top_ids"), (ir.DataType.FLOAT, ir.DataType.INT64), strict=True
    ):
        value.name, value.type = name, ir.TensorType(kind)
        value.shape = ir.Shape([1, "R", K])
    graph = ir.Graph(
        [logits], node.outputs, nodes=[node], initializers=[wanted], opset_imports={"": 21},
        name="g",
    )  # fmt: skip
    if rewrite:
        find_best_in_two_stages(graph)
    model = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return ort.InferenceSession(model), {node.op_type for node in graph}


SESSIONS = {
    (size, rewrite): session_of(size, rewrite=rewrite)[0]
    for size in (1088, 49152)
    for rewrite in (False, True)
}


def both(rows: np.ndarray) -> list[list[np.ndarray]]:
    feeds = {"logits": rows[None].astype(np.float32)}
    return [
        SESSIONS[rows.shape[1], rewrite].run(None, feeds)  # type: ignore[attr-defined]
        for rewrite in (False, True)
    ]


@pytest.mark.parametrize("rows", [1, 2, 7, 16])
def test_the_same_as_in_one_stage(rows: int) -> None:
    logits = np.random.default_rng(rows).normal(size=(rows, 49152))
    expected, found = both(logits)
    for old, new in zip(expected, found, strict=True):
        np.testing.assert_array_equal(new, old)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40))
def test_ties(seed: int, values: int) -> None:
    """The best is the lowest id among equals; after it equals may stand in another order."""
    logits = np.random.default_rng(seed).integers(0, values, (3, 1088)).astype(np.float32)
    expected, found = both(logits)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1][..., 0], logits.argmax(axis=1)[None])
    np.testing.assert_array_equal(np.take_along_axis(logits[None], found[1], -1), found[0])
    assert all(len(set(row)) == K for row in found[1][0].tolist())


def test_all_of_the_best_in_one_chunk_and_all_but_nothing_else() -> None:
    logits = np.full((2, 1088), -np.inf, np.float32)
    logits[0, 640:648] = np.arange(8)
    logits[1, ::136] = np.arange(8)
    expected, found = both(logits)
    for old, new in zip(expected, found, strict=True):
        np.testing.assert_array_equal(new, old)


@pytest.mark.parametrize(
    ("vocab_size", "in_stages"),
    [
        (49152, True),
        (32000, True),
        (151936, True),
        (50280, True),
        (50257, True),
        (50261, False),
        (96, False),
    ],
)
def test_where_chunks_divide_the_vocabulary(vocab_size: int, in_stages: bool) -> None:
    _, kinds = session_of(vocab_size, rewrite=True)
    assert ("ReduceMax" in kinds) == in_stages
