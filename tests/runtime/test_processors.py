from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade_edge.engines.protocol import Float32Array
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.processors import (
    CountPenalties,
    LogitBias,
    MinNewTokens,
    NoRepeatNgram,
    Processor,
    RepetitionPenalty,
    processors_for,
)

SIZE = 8
ids_lists = st.lists(st.integers(0, SIZE - 1), max_size=30)
seeds = st.integers(0, 99)


def row(*numbers: float) -> Float32Array:
    return np.array(numbers, dtype=np.float32)


def random_row(seed: int) -> Float32Array:
    return np.random.default_rng(seed).normal(0, 3, SIZE).astype(np.float32)


def after(processor: Processor, tokens: list[int], scores: Float32Array) -> Float32Array:
    for token in tokens:
        processor.learn(token)
    scores = scores.copy()
    processor.apply(scores)
    return scores


def reference(processor: Callable[[Any, Any], Any], ids: list[int], scores: Float32Array) -> Any:
    """What a processor of transformers makes of one row."""
    torch = pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    found = processor(torch.tensor([ids], dtype=torch.int64), torch.from_numpy(scores.copy())[None])
    return found[0].numpy()


def transformers_processors() -> Any:
    return pytest.importorskip(
        "transformers.generation.logits_process", reason="compares with transformers"
    )


def test_bias_is_added_and_may_ban() -> None:
    found = after(LogitBias({1: 2.5, 3: -np.inf, 0: -1.0}), [], row(1, 1, 1, 1))
    assert found.tolist() == [0, 3.5, 1, -np.inf]


@given(st.dictionaries(st.integers(0, SIZE - 1), st.floats(-9, 9, width=32), min_size=1), seeds)
def test_bias_is_that_of_transformers(bias: dict[int, float], seed: int) -> None:
    theirs = transformers_processors().SequenceBiasLogitsProcessor(
        {(token,): value for token, value in bias.items()}
    )
    scores = random_row(seed)
    assert np.array_equal(after(LogitBias(bias), [], scores), reference(theirs, [0], scores))


def test_repetition_penalty_works_once_on_prompt_and_output() -> None:
    found = after(RepetitionPenalty(2, [0, 0, 1], 4), [2, 2, 2], row(3, -3, 4, 5))
    assert found.tolist() == [1.5, -6, 2, 5]


@given(ids_lists, ids_lists, st.floats(0.1, 5), seeds)
def test_repetition_penalty_is_that_of_transformers(
    prompt: list[int], output: list[int], penalty: float, seed: int
) -> None:
    theirs = transformers_processors().RepetitionPenaltyLogitsProcessor(penalty)
    scores = random_row(seed)
    found = after(RepetitionPenalty(penalty, prompt, SIZE), output, scores)
    assert np.array_equal(found, reference(theirs, prompt + output, scores))


def test_presence_and_frequency_count_the_output_only() -> None:
    found = after(CountPenalties(0.5, 0.25, 4), [1, 2, 2, 2], row(1, 1, 1, 1))
    assert found.tolist() == [1, 0.25, -0.25, 1]


@given(ids_lists, st.floats(-2, 2), st.floats(-2, 2), seeds)
def test_penalties_follow_the_published_formula(
    output: list[int], presence: float, frequency: float, seed: int
) -> None:
    """mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence."""
    scores = random_row(seed)
    expected = [
        value - output.count(token) * frequency - float(output.count(token) > 0) * presence
        for token, value in enumerate(scores.tolist())
    ]
    found = after(CountPenalties(presence, frequency, SIZE), output, scores)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_ngram_comes_once() -> None:
    scores = row(1, 1, 1, 1)
    assert after(NoRepeatNgram(2, [0, 1, 0, 2]), [0], scores).tolist() == [1, -np.inf, -np.inf, 1]
    assert after(NoRepeatNgram(3, [0, 1, 2, 0]), [1], scores).tolist() == [1, 1, -np.inf, 1]
    assert after(NoRepeatNgram(3, [0]), [], scores).tolist() == [1, 1, 1, 1]


@given(ids_lists.filter(bool), ids_lists, st.integers(1, 5), seeds)
def test_ngram_bans_are_those_of_transformers(
    prompt: list[int], output: list[int], size: int, seed: int
) -> None:
    theirs = transformers_processors().NoRepeatNGramLogitsProcessor(size)
    scores = random_row(seed)
    found = after(NoRepeatNgram(size, prompt), output, scores)
    assert np.array_equal(found, reference(theirs, prompt + output, scores))


def test_end_tokens_are_banned_for_the_first_tokens() -> None:
    scores = row(1, 1, 1)
    for count, output in ((1, []), (3, [0, 0])):
        assert after(MinNewTokens(count, {1, 2}), output, scores).tolist() == [1, -np.inf, -np.inf]
    for count, output in ((1, [0]), (3, [0, 0, 0]), (1, [0, 0, 0])):
        assert after(MinNewTokens(count, {1, 2}), output, scores).tolist() == [1, 1, 1]


@given(ids_lists.filter(bool), ids_lists, st.integers(1, 9), seeds)
def test_minimum_length_is_that_of_transformers(
    prompt: list[int], output: list[int], count: int, seed: int
) -> None:
    theirs = transformers_processors().MinNewTokensLengthLogitsProcessor(len(prompt), count, [3, 5])
    scores = random_row(seed)
    found = after(MinNewTokens(count, {3, 5}), output, scores)
    assert np.array_equal(found, reference(theirs, prompt + output, scores))


def kinds(end_tokens: tuple[int, ...] = (), **options: Any) -> list[type]:
    found = processors_for(
        GenerationConfig(**options), [1], vocab_size=SIZE, end_tokens=frozenset(end_tokens)
    )
    return [type(processor) for processor in found]


def test_only_what_was_asked_for_is_applied() -> None:
    assert kinds() == []
    assert kinds(end_tokens=(3,), temperature=1, top_k=5) == []
    assert kinds(frequency_penalty=1) == kinds(presence_penalty=-1) == [CountPenalties]


def test_the_order_is_that_of_the_documentation() -> None:
    assert kinds(
        end_tokens=(3,),
        min_new_tokens=5,
        no_repeat_ngram_size=3,
        presence_penalty=1,
        repetition_penalty=1.1,
        logit_bias={5: 1},
    ) == [LogitBias, RepetitionPenalty, CountPenalties, NoRepeatNgram, MinNewTokens]


def test_end_tokens_the_model_does_not_have_are_no_matter() -> None:
    assert kinds(min_new_tokens=5, end_tokens=(SIZE, -1)) == []
    assert kinds(min_new_tokens=5) == []
