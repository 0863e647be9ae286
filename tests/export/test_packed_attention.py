"""Rotation inside attention: the same results from fewer operators, wherever its kernel can do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lade_edge.engines import WIDEST_STEP, ConfigError, open_engine
from reference_steps import (
    CHAIN,
    TREE,
    difference,
    engine_logits,
    expected_logits,
    random_step,
)
from tiny_models import VOCAB_SIZE

HALVES = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}


@pytest.mark.parametrize(
    ("family", "changes", "splits"),
    [
        ("llama", {}, 1),  # a layer's only Split is that of gate and up
        ("gemma3_text", {}, 2),  # keys and queries are normed in between
        ("phi", {"hidden_size": 64, "num_attention_heads": 2, "rope_parameters": HALVES}, None),
        ("glm4", {"head_dim": 32}, None),  # half a head, neighbours
        ("cohere", {"hidden_size": 64}, None),  # neighbours
    ],
)
def test_nothing_stands_between_projection_and_attention(
    family: str, changes: dict[str, Any], splits: int | None, exported: Any
) -> None:
    tiny = exported(family, **changes)
    found = tiny.operators("lowered")
    assert (found["RotaryEmbedding"], found["GroupQueryAttention"]) == (0, 2)
    assert splits is None or found["Split"] == 2 * splits
    engine = tiny.engine("lowered")
    for parents in (CHAIN, TREE):
        step = random_step(VOCAB_SIZE, 21, parents)
        assert difference(engine_logits(engine, step), expected_logits(tiny.model, step)) < 1e-5


def test_a_tree_at_the_very_start(exported: Any) -> None:
    """The kernel treats a step that nothing precedes in a way of its own."""
    tiny = exported("llama")
    engine = tiny.engine("lowered")
    step = random_step(VOCAB_SIZE, 0, TREE)
    engine.reset()
    engine.step(step.tokens, step.positions, step.visible, np.arange(len(TREE)))
    got = np.stack([engine.logits(row) for row in range(len(TREE))])
    assert difference(got, expected_logits(tiny.model, step)) < 1e-5


def test_the_widest_step_behind_the_last_position(exported: Any) -> None:
    """The tables have rows for every slot, and a wider engine is refused."""
    bundle = exported("llama").bundle("lowered")
    limit = bundle.manifest.model.max_position
    engine = open_engine(bundle, capacity=limit, max_width=WIDEST_STEP, threads=1)
    engine.prefill(np.full(limit - 1, 5))
    rows = np.arange(WIDEST_STEP)
    engine.step(
        [7] * WIDEST_STEP, [limit - 1] * WIDEST_STEP, np.eye(WIDEST_STEP, dtype=np.bool_), rows
    )
    first, last = engine.logits(0).copy(), engine.logits(WIDEST_STEP - 1)
    assert np.isfinite(first).all()
    assert difference(first, last) < 1e-6  # alike in token, position and what they see
    with pytest.raises(ConfigError, match="max_width is 1025, expected 1 to 1024 tokens a step"):
        open_engine(bundle, max_width=WIDEST_STEP + 1)
