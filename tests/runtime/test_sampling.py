from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chi_square import check_law
from fakes import EOS, VOCAB_SIZE, OpinionatedEngine, Script, scripted_model
from lade_edge.engines.errors import ConfigError
from lade_edge.engines.protocol import Float32Array
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.sampling import Noise, Sampler, sampler_for


def sampler(
    rows: list[list[float]], *, prompt: tuple[int, ...] = (0,), **options: Any
) -> Sampler | None:
    table = np.array(rows, dtype=np.float32)
    table.flags.writeable = False
    return sampler_for(
        GenerationConfig(**options),
        prompt,
        table.__getitem__,
        vocab_size=table.shape[1],
        end_tokens=frozenset({1}),
    )


def choices(rows: list[list[float]], **options: Any) -> list[int]:
    found = sampler(rows, **options)
    assert found is not None
    return [found.choose(index) for index in range(len(rows))]


def test_the_default_needs_no_full_rows() -> None:
    assert sampler([[1, 2]]) is None
    assert sampler([[1, 2]], seed=5, top_k=4, top_p=0.5, min_p=0.2, typical_p=0.3) is None
    engine = OpinionatedEngine(Script(rare=(EOS,)))
    scripted_model(engine=engine).generate("ab", max_new_tokens=40)
    assert engine.num_rows_read == 0


@pytest.mark.parametrize("options", [{"mode": "plain"}, {"mode": "auto"}, {"window": 3}])
def test_one_row_is_read_for_each_token(options: dict[str, Any]) -> None:
    engine = OpinionatedEngine(Script(surprise=10**9))
    found = scripted_model(engine=engine).generate(
        "abcabcabc", temperature=0.3, seed=1, max_new_tokens=60, **options
    )
    assert engine.num_rows_read == len(found.output_ids) == 60


def test_without_a_temperature_the_best_of_the_processed_row_is_taken() -> None:
    rows = [[3.0, 0, 2, 1]] * 4
    assert choices(rows, presence_penalty=1.5) == [0, 2, 0, 0]
    assert choices(rows, frequency_penalty=1.5) == [0, 2, 0, 3]
    assert choices(rows, repetition_penalty=2.0) == [2, 0, 0, 0]  # 0 is in the prompt
    assert choices(rows, no_repeat_ngram_size=1) == [2, 3, 1, 0]
    assert choices(rows, logit_bias={3: 5}) == [3, 3, 3, 3]
    assert choices([[0, 9, 1, 0]] * 4, min_new_tokens=2) == [2, 2, 1, 1]


def test_rules_that_would_ban_everything_do_not_apply() -> None:
    rows = [[1.0, 2, 3]] * 2
    banned = dict.fromkeys(range(3), -np.inf)
    assert choices(rows, logit_bias=banned) == [2, 2]
    assert len(choices(rows, logit_bias=banned, temperature=1.0)) == 2


def test_a_banned_token_is_never_drawn() -> None:
    rows = [[9.0, 0, 0, 0]] * 200
    drawn = choices(rows, logit_bias={0: -np.inf}, temperature=100.0, seed=3)
    assert set(drawn) == {1, 2, 3}


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_the_narrowest_filters_leave_the_best_token(narrow: dict[str, Any]) -> None:
    rows = np.random.default_rng(0).normal(0, 1, (50, 30)).tolist()
    best = np.argmax(rows, axis=1).tolist()
    assert choices(rows, temperature=50.0, **narrow) == best


@pytest.mark.parametrize("temperature", [1e-9, 1e-300])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    rows = np.random.default_rng(0).normal(0, 30, (50, 30)).tolist()
    assert choices(rows, temperature=temperature) == np.argmax(rows, axis=1).tolist()


def test_noise_depends_on_seed_position_and_token_alone() -> None:
    ids = np.arange(50)
    whole = Noise(7, 50).at(3, ids).copy()
    noise = Noise(7, 50)
    some = np.array([4, 9, 41])
    assert noise.at(3, some).tolist() == whole[some].tolist()
    noise.at(99, ids)
    assert noise.at(3, ids).tolist() == whole.tolist()
    for other in (Noise(8, 50).at(3, ids), Noise(7, 50).at(4, ids)):
        assert not set(other.tolist()) & set(whole.tolist())
    assert Noise(7, 80).at(3, ids).tolist() == whole.tolist()


def test_noise_is_the_same_on_every_machine_and_version() -> None:
    """Recorded once; a seed is a promise."""
    assert Noise(1, 3).at(5, np.arange(3)).tolist() == pytest.approx(
        [1.4185249479898467, 3.9697719243130503, 0.6552373884054303], rel=1e-12
    )


def test_noise_has_the_gumbel_distribution() -> None:
    """Mean 0.5772, variance pi^2/6, and no correlation over positions, tokens and seeds.

    Each bound is six standard errors: a false alarm in some 10^8 runs, were the seeds not fixed.
    """
    size = 400
    ids = np.arange(size)
    table = np.array([Noise(5, size).at(position, ids).copy() for position in range(size)])
    seeds = np.array([Noise(seed, size).at(0, ids).copy() for seed in range(size)])
    for numbers in (table, seeds):
        count = numbers.size
        assert abs(numbers.mean() - np.euler_gamma) < 6 * np.sqrt(np.pi**2 / 6 / count)
        # the variance of the sample variance is (mu_4 - sigma^4) / n; the kurtosis is 5.4
        assert abs(numbers.var() - np.pi**2 / 6) < 6 * np.pi**2 / 6 * np.sqrt(4.4 / count)
        scaled = (numbers - np.euler_gamma) / np.sqrt(np.pi**2 / 6)
        for shifted in (scaled[:, 1:] * scaled[:, :-1], scaled[1:] * scaled[:-1]):
            assert abs(shifted.mean()) < 6 / np.sqrt(shifted.size)
        diagonal = scaled[1:, 1:] * scaled[:-1, :-1]
        assert abs(diagonal.mean()) < 6 / np.sqrt(diagonal.size)


def test_a_fresh_seed_is_drawn_and_told() -> None:
    model = scripted_model(engine=OpinionatedEngine())
    first, second = (model.generate("ab", temperature=1.0, max_new_tokens=40) for _ in range(2))
    assert first.seed != second.seed
    assert first.output_ids != second.output_ids
    again = model.generate("ab", temperature=1.0, max_new_tokens=40, seed=first.seed)
    assert (again.output_ids, again.seed) == (first.output_ids, first.seed)
    assert model.generate("ab", max_new_tokens=4).seed == 0
    assert model.generate("ab", max_new_tokens=4, seed=7).seed == 7


def test_the_same_seed_draws_anew_behind_another_prompt() -> None:
    """A conversation with one seed doesn't draw the same numbers in every answer."""
    rows = [[0.0] * 50] * 30
    short = choices(rows, temperature=1.0, seed=1)
    longer = choices(rows, temperature=1.0, seed=1, prompt=(0, 0, 0))
    assert longer != short
    assert longer[:-2] == short[2:]  # keyed by the absolute position


def test_a_bias_for_a_token_the_model_does_not_have() -> None:
    model = scripted_model()
    assert model.generate("ab", logit_bias={VOCAB_SIZE - 1: 5}, max_new_tokens=1).output_ids
    with pytest.raises(ConfigError, match=r"token 260; the model knows 0 to 259"):
        model.generate("ab", logit_bias={VOCAB_SIZE: 5})


def test_the_engines_row_is_not_changed() -> None:
    row: Float32Array = np.array([1, 2, 3], dtype=np.float32)
    before = row.copy()
    settings = GenerationConfig(repetition_penalty=2, temperature=0.5, top_k=2)
    found = sampler_for(settings, [2], lambda _: row, vocab_size=3, end_tokens=frozenset())
    assert found is not None
    found.choose(0)
    assert row.tolist() == before.tolist()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_over_seeds_the_draw_has_the_processed_distribution(temperature: float) -> None:
    """False alarm: one in a million for each temperature, were the seeds not fixed."""
    row = np.array([2, 1, 0, -1, 1.5, 3, 0.5, -3], dtype=np.float32)
    bias = {5: -2.0, 1: -np.inf}
    scores = row.astype(np.float64)
    for token, value in bias.items():
        scores[token] += value
    expected = np.exp(scores / temperature)
    drawn = [
        choices([row.tolist()], temperature=temperature, seed=seed, logit_bias=bias)[0]
        for seed in range(5000)
    ]
    check_law(np.bincount(drawn, minlength=8), expected)
    with pytest.raises(AssertionError):  # it sees a temperature that is off by a half
        check_law(np.bincount(drawn, minlength=8), np.exp(scores / temperature / 1.5))
