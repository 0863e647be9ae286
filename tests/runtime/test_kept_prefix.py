"""A request on top of what the cache holds gives the ids of one that starts afresh."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import EOS, OpinionatedEngine, Script, ScriptedEngine, scripted_model
from lade_edge.engines.protocol import Int64Array, StepResult
from lade_edge.runtime.kept_prefix import KeptPrefix, common_length
from lade_edge.runtime.model import load

# Beginnings from a few stems, so that prompts share some and part at any place.
STEMS = [b"abcabcabc", b"abcabd", b"abcabcabcabc hgf", b"b"]
prompts = st.builds(
    lambda stem, cut, more: [*stem[: max(1, cut)], *more],
    st.sampled_from(STEMS),
    st.integers(0, 20),
    st.lists(st.sampled_from([97, 98, 99, EOS]), max_size=3),
)
requests = st.lists(
    st.fixed_dictionaries(
        {
            "prompt": prompts,
            "on_top": st.booleans(),  # of the last request's prompt and output
            "count": st.integers(0, 25),
            "read": st.integers(0, 12),  # events before the stream is closed
            "reuse": st.sampled_from([True, True, True, False]),
            "stop": st.sampled_from([(), ("ab",)]),
            "shape": st.sampled_from([
                {"mode": "plain"},
                {"mode": "auto", "cost": "flat", "max_width": 12},
                {"mode": "exact", "cost": "flat", "max_width": 12},
                {"window": 3, "ngram": 3, "guesses": 3},
            ]),
        }
    ),
    min_size=2,
    max_size=6,
)  # fmt: skip


class Counting(ScriptedEngine):
    prefilled = 0

    def prefill(self, tokens: Int64Array) -> StepResult:
        self.prefilled += len(tokens)
        return super().prefill(tokens)


class Drawn(Counting, OpinionatedEngine):
    pass


@settings(max_examples=80)
@given(st.integers(0, 99), requests, st.sampled_from([0.0, 1.0]))
def test_ids_are_those_without_reuse(
    salt: int, asked: list[dict[str, Any]], temperature: float
) -> None:
    script = Script(salt=salt, rare=(EOS,))
    engine = Drawn(script, capacity=128)
    kept, fresh = scripted_model(engine=engine), scripted_model(engine=Drawn(script))
    text: list[int] = []
    for request in asked:
        prompt = (text + request["prompt"] if request["on_top"] else request["prompt"])[:120]
        options = {
            "max_new_tokens": request["count"], "stop": request["stop"],
            "temperature": temperature, "seed": 5, "logprobs": 1, **request["shape"],
        }  # fmt: skip
        stream = kept.stream(prompt, reuse_prefix=request["reuse"], **options)
        expected = fresh.stream(prompt, **options)
        engine.prefilled, length = 0, engine.length
        with stream, expected:
            seen = [*islice(zip(stream, expected, strict=True), request["read"])]
        assert [ours for ours, _ in seen] == [theirs for _, theirs in seen]
        emitted = [token for event, _ in seen for token in event.ids]
        text = prompt + emitted
        if emitted:
            reused = len(prompt) - engine.prefilled
            assert reused <= min(length, len(prompt) - 1)
            keeps = request["reuse"] and request["shape"].get("mode") != "exact"
            assert keeps or reused == 0
            # A stream read to its end or closed leaves all but the last token, in their places.
            if keeps:
                assert engine._tokens[: engine.length].tolist() == text[: engine.length]
                assert engine.length == len(text) - 1
            else:
                assert engine.length == 0


def test_a_conversation_runs_only_what_is_new() -> None:
    engine = Counting(Script())
    model = scripted_model(engine=engine)
    first = model.generate("ab", max_new_tokens=9, reuse_prefix=True)
    turns = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": first.text},
        {"role": "user", "content": "c"},
    ]
    engine.prefilled = 0
    second = model.generate(turns, max_new_tokens=9, reuse_prefix=True)
    new = len("\n[user]c\n[assistant]") + 1  # the last token of an answer never ran
    assert engine.prefilled == new
    assert second.stats.reused_tokens == second.prompt_tokens - new > 0
    assert second.stats.as_dict()["reused_tokens"] == second.stats.reused_tokens
    assert second.output_ids == scripted_model().generate(turns, max_new_tokens=9).output_ids


def test_the_last_token_of_a_known_prompt_runs() -> None:
    engine = Counting(Script())
    model = scripted_model(engine=engine)
    expected = model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    engine.prefilled = 0
    again = model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    assert again.output_ids == expected.output_ids
    assert (engine.prefilled, again.stats.reused_tokens) == (1, 19)


@pytest.mark.parametrize("options", [{}, {"reuse_prefix": True, "mode": "exact"}])
def test_without_reuse_and_in_exact_everything_runs_and_nothing_stays(
    options: dict[str, Any],
) -> None:
    engine = Counting(Script())
    model = scripted_model(engine=engine)
    model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    assert engine.length > 20
    engine.prefilled = 0
    found = model.generate([97] * 20, max_new_tokens=9, **options)
    assert (engine.prefilled, engine.length, found.stats.reused_tokens) == (20, 0, 0)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_after_an_error_nothing_is_reused(error: BaseException) -> None:
    class Failing(Counting):
        fails = False

        def step(self, *arguments: Any) -> Any:
            if self.fails:
                raise error
            return super().step(*arguments)

    engine = Failing(Script())
    model = scripted_model(engine=engine)
    model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    stream = model.stream([97] * 20, max_new_tokens=9, reuse_prefix=True)
    next(stream)
    engine.fails = True
    with pytest.raises(type(error)):
        next(stream)
    assert engine.length == 0
    engine.fails, engine.prefilled = False, 0
    found = model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    assert engine.prefilled == 20
    assert list(found.output_ids) == Script().text([97] * 20, 9)


def test_an_engine_somebody_else_used_is_not_trusted() -> None:
    engine = Counting(Script())
    model = scripted_model(engine=engine)
    model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    engine.reset()
    engine.prefill(np.array([98, 98]))
    engine.prefilled = 0
    model.generate([97] * 20, max_new_tokens=9, reuse_prefix=True)
    assert engine.prefilled == 20


@given(st.lists(st.integers(0, 1), max_size=6), st.lists(st.integers(0, 1), max_size=6))
def test_common_length(left: list[int], right: list[int]) -> None:
    shared = common_length(left, right)
    assert left[:shared] == right[:shared]
    assert shared == min(len(left), len(right)) or left[shared] != right[shared]


def test_leaving_another_number_of_slots_empties_the_cache() -> None:
    engine = ScriptedEngine()
    kept = KeptPrefix(engine)
    engine.prefill(np.array([1, 2, 3]))
    kept.leave([1, 2])
    assert engine.length == 0


def test_the_real_engines_cache_is_that_of_a_fresh_run(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, fresh = (load(tiny_bundle, threads=1) for _ in range(2))
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "cost": "flat"}
    ids: Sequence[int] = model.prompts.encode("abc abc def abc abc")
    for more in ([], [40, 41, 42], [50] * 20):
        prompt = [*ids, *more]
        found = model.generate(prompt, reuse_prefix=True, **options)
        assert found.output_ids == fresh.generate(prompt, **options).output_ids
        assert (found.stats.reused_tokens > 0) == bool(more)
        ids = [*prompt, *found.output_ids]
        slots = len(ids) - 1
        assert model.engine.length == slots
        fresh.engine.reset()
        fresh.engine.prefill(np.array(ids[:-1]))
        ours, theirs = (m.engine._cache.data[:, :, :slots] for m in (model, fresh))  # type: ignore[attr-defined]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
        fresh.engine.reset()
