from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import EOS, OpinionatedEngine, Script, scripted_model
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.logprobs import LogprobReader
from lade_edge.runtime.model import load

SHAPES: list[dict[str, Any]] = [
    {"mode": "plain"},
    {"mode": "auto", "cost": "flat", "max_width": 16},
    {"mode": "exact", "cost": "flat", "max_width": 16},
    {"window": 3, "ngram": 4, "guesses": 4},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.8, "top_k": 3, "repetition_penalty": 1.3}, {"stop": "ab"}],
)
def test_they_are_the_models_own_and_end_with_the_ids(
    shape: dict[str, Any], options: dict[str, Any]
) -> None:
    engine = OpinionatedEngine(Script(rare=(EOS,), surprise=20))
    stream = scripted_model(engine=engine).stream(
        "ab", raw=True, max_new_tokens=60, logprobs=3, seed=1, **shape, **options
    )
    events = list(stream)
    result = stream.result
    assert [scored.token for scored in result.logprobs] == list(result.output_ids)
    assert all(len(event.logprobs) == len(event.ids) for event in events)
    ids = [97, 98]
    for scored in result.logprobs:
        row = engine.row_after(ids).astype(np.float64)
        expected = row - np.log(np.exp(row).sum())
        assert scored.logprob == pytest.approx(expected[scored.token], abs=1e-9)
        best = np.argsort(-expected, kind="stable")[:3]
        assert [token for token, _ in scored.top] == best.tolist()
        assert [value for _, value in scored.top] == pytest.approx(expected[best], abs=1e-9)
        ids.append(scored.token)


def test_they_cost_nothing_when_nobody_asks() -> None:
    engine = OpinionatedEngine(Script())
    model = scripted_model(engine=engine)
    found = model.generate("ab", max_new_tokens=30)
    assert (found.logprobs, engine.num_rows_read) == ((), 0)
    found = model.generate("ab", max_new_tokens=30, logprobs=0)
    assert [scored.top for scored in found.logprobs] == [()] * 30
    assert engine.num_rows_read == 30


@pytest.mark.parametrize("count", [-1, 9])
def test_eight_at_most(count: int) -> None:
    with pytest.raises(ConfigError, match=f"logprobs is {count}; expected 0 to 8"):
        scripted_model().generate("ab", logprobs=count)


def test_equal_logits_are_told_by_lowest_id_and_a_small_vocabulary_whole() -> None:
    reader = LogprobReader(lambda row: np.zeros(4, dtype=np.float32), 8)
    (scored,) = reader.read([2], ())
    assert [token for token, _ in scored.top] == [0, 1, 2, 3]
    assert scored.logprob == pytest.approx(np.log(0.25))


def test_on_the_real_engine(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load(tiny_bundle, threads=1)
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "logprobs": 2}
    plain, drafted = (
        model.generate("abc abc abc", cost="flat", **options),
        model.generate("abc abc abc", mode="plain", **options),
    )
    assert plain.output_ids == drafted.output_ids
    for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert ours.top[0] == pytest.approx((ours.token, ours.logprob))
