"""The reference of a plan's self-test: what its graph says on ONNX Runtime, in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lade_edge.engines import Bundle, EngineError, open_engine
from lade_edge.engines.self_test import LENGTH, SelfTest, make_self_test
from lade_edge.export.build_memory import reference_fits

_PROMPT = 16  # tokens
_LEAST_CLEAR = 4  # positions without which a test says little


def reference_continuation(
    bundle: Bundle, tokenizer_file: Path, notes: list[str]
) -> SelfTest | None:
    """Continue the beginning of a text that no model was calibrated with.

    Args:
        bundle: The graph a plan is built from, in float32 arithmetic.
        tokenizer_file: The model's ``tokenizer.json``; where it is missing any tokens do.
        notes: Told in a sentence why there is no self-test, or why it says little.
    """
    spec = bundle.manifest.model
    room = min(spec.max_position, _PROMPT + LENGTH)
    if room <= LENGTH or spec.top_k < 2:
        notes.append("the plan has no self-test: the model is too small for one")
        return None
    if not reference_fits(bundle):
        notes.append("the plan has no self-test: its graph in fp32 doesn't fit the free memory")
        return None
    try:
        engine = open_engine(bundle, capacity=room, max_width=1)
    except EngineError as error:
        notes.append(f"the plan has no self-test, which takes ONNX Runtime on a CPU: {error}")
        return None
    found = make_self_test(engine, _prompt(bundle, tokenizer_file, room - LENGTH))
    if len(found.clear("float16")) < _LEAST_CLEAR:
        notes.append(
            "the plan's self-test says little: at most of its tokens the model hardly prefers one"
        )
    return found


def _prompt(bundle: Bundle, tokenizer_file: Path, length: int) -> list[int]:
    from lade_edge.export.calibration import HELD_APART_TEXT, tokenise

    spec = bundle.manifest.model
    if tokenizer_file.is_file():
        (tokens, *_) = tokenise(tokenizer_file, HELD_APART_TEXT, spec.max_position)
    else:
        tokens = np.random.default_rng(0).integers(0, spec.vocab_size, length)
    return [int(token) for token in tokens[:length]]
