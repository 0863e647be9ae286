"""Greedy ids are transformers' own, for twenty prompts a family, in every mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes import PROFILE
from lade_edge.runtime.model import Model
from lade_edge.runtime.prompt import PromptEncoder
from reference_steps import sequence_logits
from tiny_models import VOCAB_SIZE

MODES: list[dict[str, Any]] = [
    {"mode": "plain"},
    {"window": 3, "ngram": 4, "guesses": 3},
    {"mode": "auto", "cost": "flat", "max_width": 16},
    {"mode": "exact", "cost": "flat", "max_width": 16},
]
NUM_NEW = 16


def prompts() -> list[list[int]]:
    """Of 1 to 39 random tokens; every other one says everything twice."""
    rng = np.random.default_rng(11)
    found: list[list[int]] = []
    for number in range(20):
        ids = rng.integers(3, VOCAB_SIZE, 1 + 2 * number).tolist()
        found.append(ids if number % 2 else [*ids[: len(ids) // 2 + 1], *ids[: len(ids) // 2 + 1]])
    return found


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "gpt2", "qwen3_moe"])
def test_twenty_prompts_give_the_greedy_ids_of_transformers(family: str, exported: Any) -> None:
    """Each emitted token is the largest logit after all before it, by transformers without a cache."""
    tiny = exported(family)
    model = Model(
        tiny.engine("lowered", max_width=32),
        PromptEncoder.from_folder(tiny.folder),
        eos=frozenset(),
    )
    accepted = 0
    for prompt in prompts():
        results = []
        for options in MODES:
            model.use_profile(PROFILE)
            results.append(model.generate(prompt, max_new_tokens=NUM_NEW, **options))
        ids = np.array([*prompt, *results[0].output_ids])
        rows = sequence_logits(tiny.model, ids)[len(prompt) - 1 : -1]
        assert rows.argmax(axis=1).tolist() == [*results[0].output_ids]
        assert len({result.output_ids for result in results}) == 1
        accepted += sum(sum(result.stats.accepted.values()) for result in results)
    assert accepted > 20
