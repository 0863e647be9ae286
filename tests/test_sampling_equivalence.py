"""Sampling has one law and, with a seed, one text, whatever is drafted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chi_square import check_statistic, pooled
from fakes import EOS, LETTERS, VOCAB_SIZE, OpinionatedEngine, Script, scripted_model
from lade_edge.engines.protocol import Float32Array
from lade_edge.runtime.sampling import Noise

scripts = st.builds(
    Script,
    alphabet=st.sampled_from([LETTERS, LETTERS[:3]]),
    rare=st.sampled_from([(), (EOS,), (EOS, 7)]),
    surprise=st.integers(3, 40),
    salt=st.integers(0, 999),
)
prompts = st.lists(st.sampled_from([*LETTERS, EOS, 7]), min_size=1, max_size=12)
fixed = st.fixed_dictionaries(
    {"window": st.integers(0, 4), "ngram": st.integers(2, 4), "guesses": st.integers(0, 4)}
)
by_cost = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["auto", "exact"]),
        "cost": st.sampled_from(["measured", "flat"]),
        "max_width": st.integers(4, 24),
    }
)
shapes = st.one_of(fixed, by_cost)
rules = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.5, 3),
        "presence_penalty": st.floats(-1, 2),
        "frequency_penalty": st.floats(-1, 2),
        "no_repeat_ngram_size": st.integers(1, 4),
        "logit_bias": st.dictionaries(
            st.sampled_from([*LETTERS, EOS]), st.floats(-5, 5) | st.just(-np.inf), max_size=3
        ),
        "min_new_tokens": st.integers(0, 20),
    },
)
filters = st.fixed_dictionaries(
    {},
    optional={
        "top_k": st.integers(1, 12),
        "top_p": st.floats(0.1, 0.99),
        "min_p": st.floats(0.01, 0.9),
        "typical_p": st.floats(0.1, 0.99),
    },
)
temperatures = st.sampled_from([0.0, 0.2, 0.5, 1.0, 1.7])
seeds = st.integers(0, 2**64 - 1)


@settings(max_examples=150)
@given(scripts, prompts, shapes, rules, filters, temperatures, seeds, st.integers(20, 45))
def test_a_seed_gives_the_ids_of_plain_decoding_in_every_mode(
    script: Script,
    prompt: list[int],
    shape: dict[str, Any],
    rules: dict[str, Any],
    filters: dict[str, Any],
    temperature: float,
    seed: int,
    count: int,
) -> None:
    model = scripted_model(engine=OpinionatedEngine(script))
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_new_tokens": count}
    options |= {**rules, **filters}
    plain = model.generate(prompt, mode="plain", **options)
    found = model.generate(prompt, **shape, **options)
    assert (found.output_ids, found.text) == (plain.output_ids, plain.text)
    assert (found.finish_reason, found.seed) == (plain.finish_reason, seed)
    assert found.stats.tokens == len(found.output_ids)
    assert found.stats.steps <= plain.stats.steps
    assert EOS not in found.output_ids[: rules.get("min_new_tokens", 0)]


@settings(max_examples=40)
@given(scripts, prompts, shapes, temperatures, st.sampled_from(["b a", "a", "gh"]), seeds)
def test_stop_texts_end_what_is_drawn_as_they_end_other_text(
    script: Script,
    prompt: list[int],
    shape: dict[str, Any],
    temperature: float,
    stop: str,
    seed: int,
) -> None:
    model = scripted_model(engine=OpinionatedEngine(script))
    options: dict[str, Any] = {"temperature": temperature, "seed": seed, "max_new_tokens": 40}
    options |= {"presence_penalty": 0.3}
    plain = model.generate(prompt, mode="plain", stop=stop, **options)
    whole = model.generate(prompt, mode="plain", **options)
    found = model.generate(prompt, stop=stop, **shape, **options)
    assert (found.output_ids, found.text) == (plain.output_ids, plain.text)
    assert found.output_ids == whole.output_ids[: len(found.output_ids)]
    assert stop not in found.text


def processed_by_transformers(
    ids: list[int], prompt: list[int], row: Float32Array, options: dict[str, Any]
) -> Float32Array:
    """One row as transformers' processors leave it, made from the whole text each time."""
    import torch
    from transformers.generation import logits_process as theirs

    output = ids[len(prompt) :]
    scores = torch.from_numpy(row.copy())[None]
    text = torch.tensor([ids])
    bias = {(token,): value for token, value in options["logit_bias"].items()}
    scores = theirs.SequenceBiasLogitsProcessor(bias)(text, scores)
    scores = theirs.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"])(text, scores)
    for token, times in Counter(output).items():  # transformers has no such penalties
        scores[0, token] -= options["presence_penalty"] + times * options["frequency_penalty"]
    for processor in (
        theirs.NoRepeatNGramLogitsProcessor(options["no_repeat_ngram_size"]),
        theirs.MinNewTokensLengthLogitsProcessor(len(prompt), options["min_new_tokens"], [EOS]),
        theirs.TemperatureLogitsWarper(options["temperature"]),
        theirs.TopKLogitsWarper(options["top_k"]),
        theirs.TopPLogitsWarper(options["top_p"]),
        theirs.MinPLogitsWarper(options["min_p"]),
        theirs.TypicalLogitsWarper(options["typical_p"]),
    ):
        scores = processor(text, scores)
    found: Float32Array = scores[0].numpy()
    return found


@pytest.mark.parametrize(
    "shape", [{"mode": "plain"}, {"cost": "flat"}, {"window": 3, "guesses": 4}]
)
@pytest.mark.parametrize("salt", range(6))
def test_every_token_is_drawn_from_the_row_that_transformers_would_process(
    shape: dict[str, Any], salt: int
) -> None:
    """Every rule at once, on every row, over exactly the text before it: accepted drafts once each."""
    pytest.importorskip("torch", reason="compares with transformers, which needs torch")
    pytest.importorskip("transformers", reason="compares with transformers")
    options: dict[str, Any] = {
        "logit_bias": {97: 0.5, 98: -1.0},
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.05,
        "no_repeat_ngram_size": 7,
        "min_new_tokens": 20,
        "temperature": 0.6,
        "top_k": 8,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.95,
    }
    engine = OpinionatedEngine(Script(alphabet=LETTERS[:4], rare=(EOS,), surprise=50, salt=salt))
    prompt = list(b"abcabcabdabcabcabd")
    found = scripted_model(engine=engine).generate(
        prompt, seed=5, max_new_tokens=50, **shape, **options
    )
    noise = Noise(5, VOCAB_SIZE)
    ids = list(prompt)
    for token in found.output_ids:
        scores = processed_by_transformers(ids, prompt, engine.row_after(ids), options)
        assert int((scores + noise.at(len(ids), np.arange(VOCAB_SIZE))).argmax()) == token
        ids.append(token)
    assert len(found.output_ids) >= 20


MODES: list[dict[str, Any]] = [
    {"mode": "plain"},
    {"mode": "auto", "cost": "flat", "max_width": 16},
    {"mode": "exact", "cost": "flat", "max_width": 8},
    {"window": 3, "ngram": 3, "guesses": 4},
]


def chi_square_of_transitions(
    shape: dict[str, Any], temperature: float, assumed: float
) -> tuple[float, int, int]:
    """Tokens of many texts against the law of the row each was drawn from.

    Returns:
        The statistic, its degrees of freedom, and how many drafts were accepted.
    """
    letters = LETTERS[:4]
    engine = OpinionatedEngine(Script(alphabet=letters, surprise=10**9, salt=3))
    model = scripted_model(engine=engine)
    counts = {(a, b): np.zeros(4) for a in letters for b in letters}
    accepted = 0
    prompt = list(b"abcdabcdabcd")
    for seed in range(60):
        found = model.generate(
            prompt, temperature=temperature, top_k=4, seed=seed, max_new_tokens=100, **shape
        )
        accepted += sum(found.stats.accepted.values())
        ids = [*prompt, *found.output_ids]
        for place in range(len(prompt), len(ids)):
            counts[ids[place - 2], ids[place - 1]][letters.index(ids[place])] += 1
    parts = [
        pooled(seen, np.exp(engine.row_after(context)[list(letters)] / assumed))
        for context, seen in counts.items()
        if seen.sum()
    ]
    return sum(part[0] for part in parts), sum(part[1] for part in parts), accepted


@pytest.mark.parametrize("shape", MODES)
@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_sampled_text_has_the_models_distribution(
    shape: dict[str, Any], temperature: float
) -> None:
    """False alarm: one in a million for each case, were the seeds not fixed."""
    statistic, freedom, accepted = chi_square_of_transitions(shape, temperature, temperature)
    assert freedom >= 15
    assert (accepted > 300) == (shape != {"mode": "plain"})
    check_statistic(statistic, freedom)


def test_the_test_of_the_distribution_can_fail() -> None:
    statistic, freedom, _ = chi_square_of_transitions(MODES[1], 1.0, 1.3)
    with pytest.raises(AssertionError, match="chi-square"):
        check_statistic(statistic, freedom)


@pytest.mark.parametrize("shape", MODES)
def test_min_p_holds_for_every_accepted_token(shape: dict[str, Any]) -> None:
    """Without it, tokens below the bound do come; with it, none does, however long the chunks."""
    engine = OpinionatedEngine(Script(alphabet=LETTERS[:4], surprise=10**9, salt=3))
    model = scripted_model(engine=engine)
    prompt = list(b"abcdabcdabcd")

    def shares(min_p: float) -> tuple[list[float], int]:
        found = model.generate(
            prompt, temperature=1.5, min_p=min_p, seed=4, max_new_tokens=100, **shape
        )
        ids = [*prompt, *found.output_ids]
        rows = [np.exp(engine.row_after(ids[:end]) / 1.5) for end in range(len(prompt), len(ids))]
        tokens = zip(rows, found.output_ids, strict=True)
        return [float(row[token] / row.max()) for row, token in tokens], sum(
            found.stats.accepted.values()
        )

    free, _ = shares(0.0)
    bound, accepted = shares(0.4)
    assert sum(share < 0.4 for share in free) > 5
    assert min(bound) >= 0.4 - 1e-6
    assert min(bound) < 1  # draws, not the best token each time
    assert (accepted > 10) == (shape != {"mode": "plain"})


@pytest.mark.parametrize("shape", MODES)
def test_the_minimum_length_counts_tokens_not_steps(shape: dict[str, Any]) -> None:
    """An end token that always looks best comes as soon as it may, however long the steps are."""
    engine = OpinionatedEngine(Script(alphabet=LETTERS[:3], surprise=10**9))
    options: dict[str, Any] = {"logit_bias": {EOS: 100.0}, "max_new_tokens": 60}
    for temperature in (0.0, 0.5):
        found = scripted_model(engine=engine).generate(
            "abcabcabc", min_new_tokens=33, temperature=temperature, seed=2, **options, **shape
        )
        assert len(found.output_ids) == 34
        assert found.output_ids.index(EOS) == 33
        assert found.finish_reason == "eos"


def test_ignored_end_tokens_need_no_minimum() -> None:
    engine = OpinionatedEngine(Script(alphabet=LETTERS[:3]))
    found = scripted_model(engine=engine).generate(
        "ab", logit_bias={EOS: 100.0}, min_new_tokens=5, ignore_eos=True, max_new_tokens=9
    )
    assert found.output_ids == (EOS,) * 9


@pytest.mark.parametrize("shape", MODES)
def test_penalties_see_every_accepted_token(shape: dict[str, Any]) -> None:
    """A penalty larger than any preference takes the letters in turn; a token missed would show."""
    engine = OpinionatedEngine(Script(alphabet=LETTERS[:3], surprise=10**9, salt=1))
    found = scripted_model(engine=engine).generate(
        "abcabcabc",
        frequency_penalty=30.0,
        logit_bias=dict.fromkeys(LETTERS[:3], 900.0),
        max_new_tokens=60,
        **shape,
    )
    for start in range(0, 60, 3):
        assert {*found.output_ids[start : start + 3]} == {*LETTERS[:3]}
    assert shape == {"mode": "plain"} or sum(found.stats.accepted.values()) > 20
