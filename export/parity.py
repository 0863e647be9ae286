"""Does an exported graph say what its reference says? Three kinds of step, row by row.

The reference is transformers on whole sequences without a cache, so that it shares none of the
machinery under test: cache, slots, chunking, positions of a tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lade_edge.engines import Bundle, ModelSpec, ParityError
from lade_edge.engines.protocol import BoolArray, Engine, Float32Array, Int64Array

# largest difference over the largest logit; a quantised graph is judged by `quality`, on text, and
# the float32 graph it is made from by the first of these
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "int8": 1.0, "int4": 1.0}

Reference = Callable[[Int64Array, Int64Array, BoolArray], Float32Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityStep:
    """One step to compare.

    Attributes:
        name: ``single``, ``multi_token`` or ``tree``.
        parents: ``(T,)`` index of each token's parent in the step, -1 for the committed text.
    """

    name: str
    parents: tuple[int, ...]


# after a prefill: one token, a chain, and two branches below a root with a second token each
STEPS = (
    ParityStep(name="single", parents=(-1,)),
    ParityStep(name="multi_token", parents=(-1, 0, 1, 2, 3)),
    ParityStep(name="tree", parents=(-1, 0, 1, 2, 0, 4, 5)),
)


def check_parity(
    engine: Engine, spec: ModelSpec, reference: Reference, precision: str
) -> dict[str, float]:
    """Compare an engine with a reference on prefill, single-, multi-token and tree steps.

    Args:
        engine: Opened with room for the steps; left empty.
        spec: Shape of the model.
        reference: Called with tokens ``(n,)``, positions ``(n,)`` and visibility ``(n, n)`` of a
            whole sequence; returns logits ``(n, V)``.
        precision: Picks the tolerance.

    Returns:
        Largest difference per step, as a share of the reference's largest logit.

    Raises:
        ParityError: If a difference exceeds the tolerance or is not finite.
    """
    rng = np.random.default_rng(0)
    found: dict[str, float] = {}
    length = prefix_length(spec, engine.spec.capacity)
    prefix = rng.integers(0, spec.vocab_size, length)
    engine.reset()
    engine.prefill(prefix)
    chain = np.tri(length, dtype=np.bool_)
    expected = reference(prefix, np.arange(length), chain)[-1:]
    found["prefill"] = _difference(engine.logits(0)[None], expected)
    for step in STEPS:
        tokens = rng.integers(0, spec.vocab_size, len(step.parents))
        depth, visible = _tree(step.parents)
        rows = np.arange(len(tokens))
        engine.step(tokens, length + depth, visible, rows)
        got = np.stack([engine.logits(int(row)) for row in rows])
        whole = np.zeros((length + len(tokens),) * 2, np.bool_)
        whole[:length, :length], whole[length:, :length] = chain, True
        whole[length:, length:] = visible
        positions = np.concatenate([np.arange(length), length + depth])
        expected = reference(np.concatenate([prefix, tokens]), positions, whole)[length:]
        found[step.name] = _difference(got, expected)
    engine.reset()
    tolerance = TOLERANCES[precision]
    worst = max(found, key=lambda name: found[name] if np.isfinite(found[name]) else np.inf)
    if not found[worst] <= tolerance:
        raise ParityError(
            f"{engine.spec.name} differs from the reference by {found[worst]:.2g} of the largest "
            f"logit in the {worst} step, expected at most {tolerance:g}"
        )
    return found


def prefix_length(spec: ModelSpec, capacity: int) -> int:
    """Tokens ahead of the compared step: beyond a short sliding window, within the capacity."""
    room = min(capacity, spec.max_position) - max(len(step.parents) for step in STEPS)
    wanted = spec.sliding_window + 5 if spec.sliding_window else 24
    return max(1, min(wanted if wanted <= 256 else 24, room))


def transformers_reference(model: Any, spec: ModelSpec) -> Reference:
    """The source model with transformers' own attention, fed whole sequences with explicit masks.

    Args:
        model: Causal language model, float32; its attention implementation is set.
        spec: Shape of the model.
    """
    import torch

    def run(tokens: Int64Array, positions: Int64Array, visible: BoolArray) -> Float32Array:
        model.set_attn_implementation("eager")
        full = _additive(visible)
        mask: Any = full
        if spec.sliding_window:
            recent = positions[:, None] - positions[None, :] < spec.sliding_window
            window = _additive(visible & recent)
            has_kinds = getattr(model.config.get_text_config(), "layer_types", None) is not None
            mask = {"full_attention": full, "sliding_attention": window} if has_kinds else window
        with torch.no_grad():
            logits = model(
                input_ids=torch.from_numpy(tokens)[None],
                position_ids=torch.from_numpy(positions)[None],
                attention_mask=mask,
                use_cache=False,
            ).logits
        out: Float32Array = logits[0].float().numpy()
        return out

    def _additive(visible: BoolArray) -> Any:
        blocked = torch.finfo(torch.float32).min
        return torch.where(torch.from_numpy(visible), 0.0, blocked)[None, None]

    return run


def engine_reference(bundle: Bundle) -> Reference:
    """The canonical graph on ONNX Runtime, where the weights are no longer at hand."""
    from lade_edge.engines import open_engine

    engine = open_engine(bundle, capacity=min(512, bundle.manifest.capacity), max_width=272)

    def run(tokens: Int64Array, positions: Int64Array, visible: BoolArray) -> Float32Array:
        engine.reset()
        engine.step(tokens, positions, visible, np.arange(len(tokens)))
        return np.stack([engine.logits(row) for row in range(len(tokens))])

    return run


def _tree(parents: tuple[int, ...]) -> tuple[Int64Array, BoolArray]:
    depth = np.zeros(len(parents), np.int64)
    visible = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent >= 0:
            depth[node] = depth[parent] + 1
            visible[node] |= visible[parent]
    return depth, visible


def _difference(got: Float32Array, expected: Float32Array) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())
