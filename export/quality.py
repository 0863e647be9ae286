"""What quantisation cost: perplexity and choices against float32, on a text nothing was fitted to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lade_edge.engines import ExportError, Quality
from lade_edge.engines.protocol import Engine, Float32Array, Int64Array

WARN_ABOVE = 1.02
FAIL_ABOVE = 1.10


def compare_quality(reference: Engine, engine: Engine, sequences: Sequence[Int64Array]) -> Quality:
    """Read the same text with both engines, token by token.

    Args:
        reference: Engine over the float32 graph; left empty.
        engine: Engine over the quantised graph, of the same widest step; left empty.
        sequences: ``(n,)`` tokens each, n within the engines' capacity.

    Returns:
        Ratio of perplexities and share of positions with the same best token.
    """
    loss = {reference: 0.0, engine: 0.0}
    agreed = rows = 0
    width = min(reference.spec.max_width, engine.spec.max_width)
    for sequence in sequences:
        reference.reset()
        engine.reset()
        for start in range(0, len(sequence) - 1, width):
            tokens = sequence[start : min(start + width, len(sequence) - 1)]
            following = sequence[start + 1 : start + 1 + len(tokens)]
            expected, found = (_logits(e, tokens, start) for e in (reference, engine))
            loss[reference] += _cross_entropy(expected, following)
            loss[engine] += _cross_entropy(found, following)
            agreed += int((expected.argmax(axis=1) == found.argmax(axis=1)).sum())
            rows += len(tokens)
    reference.reset()
    engine.reset()
    return Quality(
        perplexity_ratio=float(np.exp((loss[engine] - loss[reference]) / rows)),
        top1_agreement=agreed / rows,
        perplexity=float(np.exp(loss[engine] / rows)),
        tokens=rows,
    )


def check_quality(
    quality: Quality, precision: str, *, kv_cache: str = "fp32", allow_loss: bool
) -> str | None:
    """Judge a measured quality.

    Args:
        quality: What was measured.
        precision: Of the weights, for the sentence.
        kv_cache: Type of the KV cache, for the sentence.
        allow_loss: Keep what lost too much.

    Returns:
        A warning in one sentence, or None.

    Raises:
        ExportError: If the loss is beyond what anybody wants unasked.
    """
    ratio = quality.perplexity_ratio
    cache = "" if kv_cache == "fp32" else f" with an {kv_cache} KV cache"
    instead = "" if kv_cache == "fp32" else "--kv-cache fp32 or "
    said = (
        f"{precision}{cache} has {ratio:.3f} times the perplexity of fp32 and chooses the same token at "
        f"{quality.top1_agreement:.1%} of the positions"
    )
    if not ratio <= FAIL_ABOVE and not allow_loss:
        raise ExportError(
            f"{said}; at most {FAIL_ABOVE} times is kept: use {instead}another --precision, calibrate with a "
            "text like yours (--calibrate FILE), or accept it with --allow-quality-loss"
        )
    if not ratio <= WARN_ABOVE:
        return f"{said}, more than {WARN_ABOVE} times"
    return None


def _logits(engine: Engine, tokens: Int64Array, start: int) -> Float32Array:
    """``(n, V)`` of a chain that is committed."""
    rows = np.arange(len(tokens))
    engine.step(tokens, start + rows, np.tri(len(tokens), dtype=np.bool_), rows)
    logits = np.stack([engine.logits(int(row)) for row in rows])
    engine.keep(range(len(tokens)))
    return logits


def _cross_entropy(logits: Float32Array, following: Int64Array) -> float:
    """Sum over rows, in nats."""
    largest = logits.max(axis=1)
    total = np.log(np.exp(logits - largest[:, None]).sum(axis=1, dtype=np.float64))
    return float((total + largest - logits[np.arange(len(logits)), following]).sum())
