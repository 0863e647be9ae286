"""What a step ought to give: transformers on plain sequences, one per path through the tree.

No mask, position or cache is handed to transformers, so nothing under test is shared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lade_edge.engines.protocol import BoolArray, Engine, Float32Array, Int64Array

CHAIN = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)  # longer than the tiny models' window
TREE = (-1, 0, 1, 2, 0, 4, 5, 6, 7)  # a root with two branches; positions and slots differ


@dataclass(frozen=True, slots=True)
class Step:
    """Tokens to run after a prefix.

    Attributes:
        prefix: ``(P,)`` committed tokens.
        tokens: ``(T,)`` tokens of the step.
        positions: ``(T,)``.
        visible: ``(T, T)``.
        parents: ``(T,)`` index of each token's parent, -1 for the prefix.
    """

    prefix: Int64Array
    tokens: Int64Array
    positions: Int64Array
    visible: BoolArray
    parents: tuple[int, ...]


def random_step(vocab_size: int, length: int, parents: tuple[int, ...], seed: int = 7) -> Step:
    """A step of random tokens after a random prefix."""
    rng = np.random.default_rng(seed)
    depth = np.zeros(len(parents), np.int64)
    visible = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            depth[node] = depth[parent] + 1
            visible[node] |= visible[parent]
    return Step(
        prefix=rng.integers(3, vocab_size, length),
        tokens=rng.integers(3, vocab_size, len(parents)),
        positions=length + depth,
        visible=visible,
        parents=parents,
    )


def expected_logits(model: Any, step: Step) -> Float32Array:
    """Logits ``(T, V)`` of the step's tokens."""
    out = np.zeros((len(step.tokens), model.config.get_text_config().vocab_size), np.float32)
    leaves = set(range(len(step.tokens))) - set(step.parents)
    for leaf in sorted(leaves):
        path = np.flatnonzero(step.visible[leaf])
        out[path] = sequence_logits(model, np.concatenate([step.prefix, step.tokens[path]]))[
            len(step.prefix) :
        ]
    return out


def sequence_logits(model: Any, tokens: Int64Array) -> Float32Array:
    """Logits ``(n, V)`` of a plain sequence."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(tokens)[None], use_cache=False).logits
    rows: Float32Array = logits[0].float().numpy()
    return rows


def engine_logits(engine: Engine, step: Step) -> Float32Array:
    """Logits ``(T, V)`` of a step on an engine, after a prefill."""
    engine.reset()
    engine.prefill(step.prefix)
    rows = np.arange(len(step.tokens))
    engine.step(step.tokens, step.positions, step.visible, rows)
    return np.stack([engine.logits(int(row)) for row in rows])


def difference(got: Float32Array, expected: Float32Array) -> float:
    """Largest difference as a share of the largest logit."""
    return float(np.abs(got - expected).max() / np.abs(expected).max())
