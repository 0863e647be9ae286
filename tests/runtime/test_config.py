from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import ScriptedEngine
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.config import PLAIN, GenerationConfig, Shape


@pytest.mark.parametrize(
    ("window", "ngram", "guesses", "width"),
    [(15, 5, 15, 120), (5, 4, 2, 21), (2, 3, 2, 8), (1, 2, 0, 1), (0, 4, 4, 13), (0, 2, 0, 1)],
)
def test_width_of_a_step(window: int, ngram: int, guesses: int, width: int) -> None:
    assert Shape(window=window, ngram=ngram, guesses=guesses).width == width


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(2, 9), st.integers(0, 30), st.integers(1, 300))
def test_a_fitted_shape_fits(window: int, ngram: int, guesses: int, max_width: int) -> None:
    shape = Shape(window=window, ngram=ngram, guesses=guesses)
    fitted = shape.fitted(max_width)
    assert fitted.width <= max_width
    assert fitted.window <= window
    assert fitted.guesses <= guesses
    assert fitted == (shape if shape.width <= max_width else fitted)
    if max_width >= 2 and guesses:
        assert fitted.guesses


@pytest.mark.parametrize(
    ("device", "expected"), [("cpu", (2, 3, 2)), ("cuda", (4, 4, 4)), ("npu", (2, 3, 2))]
)
def test_defaults_come_from_the_device(device: str, expected: tuple[int, int, int]) -> None:
    shape = GenerationConfig(mode="lookahead").shape(ScriptedEngine(device=device).spec)
    assert (shape.window, shape.ngram, shape.guesses) == expected


def test_a_given_number_replaces_its_default_only() -> None:
    shape = GenerationConfig(window=5).shape(ScriptedEngine().spec)
    assert (shape.window, shape.ngram, shape.guesses) == (5, 3, 2)


def test_defaults_shrink_to_a_narrow_engine() -> None:
    narrow = ScriptedEngine(max_width=4).spec
    assert GenerationConfig(mode="lookahead").shape(narrow).width <= 4


def test_plain_mode_has_no_drafts() -> None:
    with pytest.raises(ConfigError, match="window belongs to mode lookahead, the mode is plain"):
        GenerationConfig(mode="plain", window=5)
    config = GenerationConfig(mode="plain")
    assert config.shape(ScriptedEngine(max_width=1).spec) == PLAIN
    assert PLAIN.width == 1


def test_a_shape_too_wide_names_both_numbers_and_a_legal_triple() -> None:
    config = GenerationConfig(window=15, ngram=5, guesses=15)
    with pytest.raises(ConfigError, match=r"120 tokens.* at most 64") as caught:
        config.shape(ScriptedEngine(max_width=64).spec)
    numbers = re.search(r"try window (\d+), ngram (\d+), guesses (\d+)", str(caught.value))
    assert numbers
    window, ngram, guesses = map(int, numbers.groups())
    assert Shape(window=window, ngram=ngram, guesses=guesses).width <= 64


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "fast"},
        {"max_new_tokens": -1},
        {"seed": -1},
        {"window": -1},
        {"ngram": 1},
        {"guesses": -1},
        {"stop": ("a", "")},
        {"seed": 1 << 64},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "warm"},
        {"temperature": True},
        {"top_k": -1},
        {"top_k": 2.0},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"min_p": 2},
        {"typical_p": -1},
        {"repetition_penalty": 0},
        {"presence_penalty": None},
        {"frequency_penalty": 1e9},
        {"no_repeat_ngram_size": -2},
        {"min_new_tokens": -1},
        {"min_new_tokens": 300},
        {"logit_bias": [5]},
        {"logit_bias": {"5": 1}},
        {"logit_bias": {-5: 1}},
        {"logit_bias": {5: float("nan")}},
        {"logit_bias": {5: float("inf")}},
    ],
)
def test_values_that_cannot_be_used(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        GenerationConfig(**options)


def test_one_stop_text_may_be_given_bare() -> None:
    assert GenerationConfig(stop="END").stop == ("END",)  # type: ignore[arg-type]


def test_numbers_of_the_paper_choose_its_mode() -> None:
    assert GenerationConfig().decoding == "auto"
    assert GenerationConfig(ngram=4).decoding == "lookahead"
    assert dataclasses.replace(GenerationConfig(seed=3), window=2).decoding == "lookahead"
    with pytest.raises(ConfigError, match="guesses belongs to mode lookahead, the mode is exact"):
        GenerationConfig(mode="exact", guesses=2)


def test_sampling_is_off_unless_asked_for() -> None:
    config = GenerationConfig()
    assert (config.temperature, config.seed, config.logit_bias) == (0, None, {})
    assert config.seeded().seed == 0
    assert GenerationConfig(seed=5, temperature=1).seeded().seed == 5
    fresh = {GenerationConfig(temperature=1).seeded().seed for _ in range(4)}
    assert len(fresh) == 4
    assert None not in fresh


def test_whole_numbers_will_do_for_others_and_bias_is_copied() -> None:
    bias = {5: 1, 6: float("-inf")}
    config = GenerationConfig(temperature=1, logit_bias=bias)
    bias[5] = 9
    assert type(config.temperature) is float
    assert config.logit_bias == {5: 1.0, 6: float("-inf")}
    assert hash(config) == hash(GenerationConfig(temperature=1.0))


def test_a_minimum_above_the_maximum_names_both() -> None:
    with pytest.raises(ConfigError, match=r"min_new_tokens is 9, max_new_tokens 5; .*lower it"):
        GenerationConfig(min_new_tokens=9, max_new_tokens=5)
