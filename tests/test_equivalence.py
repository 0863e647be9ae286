"""Lookahead decoding gives the ids of plain decoding, whatever it guesses.

The expected ids come from the script itself, without engine or decode loop; the planted faults at
the end show that these tests can fail.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import EOS, LETTERS, PROFILE, Recital, Script, ScriptedEngine, scripted_model
from lade_edge.engines.errors import ConfigError
from lade_edge.engines.protocol import BoolArray, Ids, Int64Array, StepResult
from lade_edge.runtime.device_profile import DeviceProfile
from lade_edge.runtime.generation import Generation
from lade_edge.runtime.model import Model
from lade_edge.runtime.stop import StopMatcher

UTF8 = tuple({*"é中😀".encode(), *b"ab "})

scripts = st.builds(
    Script,
    alphabet=st.sampled_from([LETTERS, UTF8, LETTERS[:3]]),
    rare=st.sampled_from([(), (EOS,), (EOS, 7)]),
    surprise=st.integers(2, 12),
    salt=st.integers(0, 999),
)
prompts = st.lists(st.sampled_from([*LETTERS, EOS, 7]), min_size=1, max_size=12)
fixed = st.fixed_dictionaries(
    {"window": st.integers(0, 5), "ngram": st.integers(2, 5), "guesses": st.integers(0, 4)}
)


def by_cost(mode: str, min_widths: st.SearchStrategy[int]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "mode": st.just(mode),
            "cost": st.sampled_from(["measured", "flat"]),
            "max_width": st.integers(4, 40),
            "min_width": min_widths,
        }
    )


tested = st.sampled_from([1, 2, 4])  # exact takes no other; 1 stands for its own least
# every way of drafting
shapes = st.one_of(fixed, by_cost("auto", st.integers(1, 4)), by_cost("exact", tested))


def expected_ids(script: Script, prompt: list[int], count: int, *, eos: bool = True) -> list[int]:
    return script.text(prompt, count, eos=frozenset({EOS} if eos else ()))


def check_usage(generation: Generation) -> None:
    stats = generation.stats
    assert stats.tokens == len(generation.output_ids)
    assert stats.steps == sum(stats.widths.values())
    assert sum(stats.accepted.values()) <= stats.tokens
    for origin, accepted in stats.accepted.items():
        assert accepted <= stats.proposed[origin]


@settings(max_examples=150, deadline=None)
@given(scripts, prompts, shapes, st.integers(0, 40), st.integers(0, 3), st.booleans())
def test_lookahead_ids_equal_plain_ids(
    script: Script,
    prompt: list[int],
    shape: dict[str, Any],
    count: int,
    seed: int,
    ignore_eos: bool,
) -> None:
    model = scripted_model(script)
    found = model.generate(prompt, max_new_tokens=count, seed=seed, ignore_eos=ignore_eos, **shape)
    plain = model.generate(prompt, max_new_tokens=count, mode="plain", ignore_eos=ignore_eos)
    assert list(found.output_ids) == expected_ids(script, prompt, count, eos=not ignore_eos)
    for generation in (found, plain):
        check_usage(generation)
    assert found.output_ids == plain.output_ids
    assert found.text == plain.text
    assert found.finish_reason == plain.finish_reason
    assert found.stats.steps <= plain.stats.steps


@settings(max_examples=60, deadline=None)
@given(
    scripts,
    prompts,
    shapes,
    st.lists(st.text("abcdé ", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_stop_texts(
    script: Script, prompt: list[int], shape: dict[str, Any], stop: list[str]
) -> None:
    model = scripted_model(script)
    options: dict[str, Any] = {"max_new_tokens": 50, "stop": tuple(stop)}
    found = model.generate(prompt, **shape, **options)
    plain = model.generate(prompt, mode="plain", **options)
    whole = model.generate(prompt, mode="plain", max_new_tokens=50)
    assert (found.output_ids, found.text) == (plain.output_ids, plain.text)
    assert found.finish_reason == plain.finish_reason
    matcher = StopMatcher(stop)
    assert found.text == matcher.push(whole.text) + matcher.flush()
    assert (found.finish_reason == "stop") == matcher.matched
    assert list(found.output_ids) == list(whole.output_ids[: len(found.output_ids)])
    check_usage(found)


@settings(max_examples=80, deadline=None)
@given(scripts, prompts, shapes, st.integers(1, 9), st.integers(1, 4))
def test_up_to_the_last_slot(
    script: Script, prompt: list[int], shape: dict[str, Any], room: int, plain_width: int
) -> None:
    capacity = len(prompt) + room
    engine = ScriptedEngine(script, capacity=capacity, plain_width=plain_width)
    model = scripted_model(engine=engine)
    found = model.generate(prompt, max_new_tokens=99, **shape)
    assert list(found.output_ids) == expected_ids(script, prompt, room)
    assert found.finish_reason == ("eos" if found.output_ids[-1] == EOS else "context")
    assert all(width >= plain_width for width in engine.widths)
    exact = model.generate(prompt, max_new_tokens=room, ignore_eos=True, **shape)
    assert exact.finish_reason == "length"
    assert len(exact.output_ids) == room


@settings(max_examples=60, deadline=None)
@given(scripts, prompts, shapes)
def test_every_budget_is_met_exactly(
    script: Script, prompt: list[int], shape: dict[str, Any]
) -> None:
    model = scripted_model(script)
    expected = expected_ids(script, prompt, 12, eos=False)
    for count in range(shape.get("window", 4) + shape.get("ngram", 4) + 1):
        found = model.generate(prompt, max_new_tokens=count, ignore_eos=True, **shape)
        assert list(found.output_ids) == expected[:count]
        assert found.finish_reason == "length"


@settings(max_examples=40, deadline=None)
@given(scripts, prompts, prompts, shapes)
def test_nothing_leaks_from_one_generation_to_the_next(
    script: Script, long: list[int], short: list[int], shape: dict[str, Any]
) -> None:
    def outcome(model: Model, prompt: list[int], count: int) -> tuple[object, ...]:
        model.use_profile(PROFILE)  # corrected between generations, and the one thing that is
        generation = model.generate(prompt, max_new_tokens=count, **shape)
        stats = generation.stats
        return generation.output_ids, stats.steps, stats.accepted, stats.widths

    model = scripted_model(script)
    for prompt, count in ((long, 40), (short, 9), (short, 9), (long, 40)):
        assert outcome(model, prompt, count) == outcome(scripted_model(script), prompt, count)


@settings(max_examples=60, deadline=None)
@given(scripts, prompts, shapes, st.sampled_from([(), ("b a",)]), st.integers(0, 30))
def test_events_make_the_result(
    script: Script, prompt: list[int], shape: dict[str, Any], stop: tuple[str, ...], count: int
) -> None:
    stream = scripted_model(script).stream(prompt, max_new_tokens=count, stop=stop, **shape)
    events = list(stream)
    result = stream.result
    assert "".join(event.text for event in events) == result.text
    assert tuple(token for event in events for token in event.ids) == result.output_ids
    assert all(event.ids for event in events)
    assert len(events) == (result.stats.steps + 1 if count else 0)


def test_repetitive_text_is_accepted_in_long_runs() -> None:
    """Guards the acceptance rate: a fixture whose drafts are nearly always right."""
    script = Script(surprise=10**9)
    found = scripted_model(script).generate(
        list(b"ab"), max_new_tokens=100, window=5, ngram=4, guesses=5
    )
    assert found.stats.tokens_per_step > 3
    assert sum(found.stats.accepted.values()) == found.stats.tokens - 1 - found.stats.steps


@pytest.mark.parametrize(
    ("shape", "floor"),
    [
        ({"mode": "auto", "cost": "flat", "max_width": 16}, 4.3),
        ({"mode": "exact", "cost": "flat"}, 4.2),
        ({"window": 3, "ngram": 4, "guesses": 4}, 2.3),
        ({"window": 0, "ngram": 4, "guesses": 4}, 2.3),
    ],
)
def test_tokens_a_step_stay_above_a_floor(shape: dict[str, Any], floor: float) -> None:
    """Text with some surprises. A change that loses drafts, or what they learn from, gives the same
    ids in more steps, and shows here alone; the floors lie a tenth below what was measured.
    """
    per_step = []
    for salt in range(4):
        model = scripted_model(Script(surprise=12, salt=salt), capacity=600)
        per_step.append(model.generate("abc", max_new_tokens=400, **shape).stats.tokens_per_step)
    assert sum(per_step) / len(per_step) > floor


@pytest.mark.parametrize(
    ("step_ms", "least_share"),
    [({1: 10.0, 2: 13.0, 4: 19.0, 8: 31.0}, 0.95), (PROFILE.step_ms[64], 0.5)],
)
def test_automatic_mode_is_plain_where_nothing_pays(
    step_ms: dict[int, float], least_share: float
) -> None:
    """Text that can't be foreseen, on devices of these step times: it costs no more than plain."""
    script = Script(alphabet=tuple(range(200)), surprise=1)
    model = scripted_model(script, capacity=1024)
    model.use_profile(DeviceProfile(step_ms={64: step_ms}, invariant_from=2))
    stats = model.generate([1, 2, 3], max_new_tokens=800, ignore_eos=True).stats
    widths, times = [*step_ms], [*step_ms.values()]
    spent = sum(np.interp(width, widths, times) * n for width, n in stats.widths.items())
    assert stats.widths[1] > least_share * stats.steps
    assert spent < 1.03 * step_ms[1] * (stats.tokens - 1)


TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"city": "str"}}}]
TOOL_CHAT = (
    "{% for tool in tools %}<|bos|><tools>{{ tool | tojson }}</tools><|eos|>\n{% endfor %}"
    "{% for m in messages %}<|bos|>{{ m['role'] }}\n{{ m['content'] }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)


def tool_call(city: str, unit: str) -> str:
    call = {"name": "get_weather", "arguments": {"city": city, "unit": unit}}
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


@pytest.mark.parametrize(
    "shape",
    [
        {"window": 2, "ngram": 2, "guesses": 2},
        {"window": 3, "ngram": 4, "guesses": 4},
        {"window": 0, "ngram": 8, "guesses": 3},
        {"mode": "auto", "cost": "measured"},
        {"mode": "auto", "cost": "flat", "max_width": 32},
        {"mode": "exact", "cost": "flat", "max_width": 16},
    ],
)
def test_a_tool_call_transcript_gives_the_ids_of_plain_decoding(shape: dict[str, Any]) -> None:
    """Template tokens match everywhere, and what follows differs: hits on them prove nothing."""
    calls = [tool_call("Paris", "C"), tool_call("Parma", "C"), tool_call("Oslo", "F")]
    history = [
        {"role": "user", "content": "Weather in Paris and Oslo?"},
        {"role": "assistant", "content": tool_call("Paris", "F") + "\n" + tool_call("Oslo", "C")},
        {"role": "tool", "content": '{"city": "Paris", "unit": "F", "value": 70}'},
        {"role": "user", "content": "And in Paris, Parma and Oslo?"},
    ]
    encoder = scripted_model(template=TOOL_CHAT).prompts
    prompt = encoder.encode(history, tools=TOOLS)
    assert prompt.count(EOS) == 5
    answer = (*"\n".join(calls).encode(), EOS)
    engine = ScriptedEngine(Recital(lines=(*prompt, *answer)), capacity=len(prompt) + 400)
    model = scripted_model(engine=engine, template=TOOL_CHAT)
    found = model.generate(history, tools=TOOLS, max_new_tokens=400, **shape)
    assert found.output_ids == answer
    assert found.text == "\n".join(calls)
    assert found.finish_reason == "eos"
    assert sum(found.stats.accepted.values()) > 20
    assert sum(found.stats.proposed.values()) > sum(found.stats.accepted.values())


def test_a_fully_matched_ngram_gives_its_bonus_token() -> None:
    """Constant text, one guess of N-1 = 3 tokens: N tokens a step, also without a window."""
    script = Script(alphabet=(97,), surprise=10**9)
    found = scripted_model(script).generate(
        [97] * 8, max_new_tokens=41, window=0, ngram=4, guesses=1
    )
    assert found.stats.steps == 10
    assert found.stats.widths == {4: 10}


def test_the_window_foresees_what_neither_prompt_nor_output_had() -> None:
    script = Script(alphabet=LETTERS, surprise=10**9)
    with_window = scripted_model(script).generate(
        [7], max_new_tokens=30, window=5, ngram=3, guesses=3
    )
    assert with_window.stats.accepted.get("window", 0) > 0


class FaultyEngine(ScriptedEngine):
    """Changes what the decode loop asked for, as a fault in it would."""

    fault = ""

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        visible, positions, tokens = visible.copy(), np.array(positions), np.array(tokens)
        if self.fault == "a draft misses its parent":
            for row in range(2, len(tokens)):
                visible[row, row - 1] = False
        elif self.fault == "branches see each other":
            visible = np.tri(len(tokens), dtype=np.bool_)
        elif self.fault == "the root is not seen":
            visible[1:, 0] = False
        elif self.fault == "slots for positions":
            positions = self.length + np.arange(len(tokens))
        elif self.fault == "results one row late":
            rows = np.maximum(rows - 1, 0)
        return super().step(tokens, positions, visible, rows)

    def keep(self, slots: Sequence[int]) -> None:
        if self.fault == "slots kept in place of the path":
            slots = range(len(slots))
        elif self.fault == "one row too few":
            slots = slots[: max(1, len(slots) - 1)]
        super().keep(slots)


@pytest.mark.parametrize(
    "fault",
    [
        "a draft misses its parent",
        "branches see each other",
        "the root is not seen",
        "slots for positions",
        "results one row late",
        "slots kept in place of the path",
        "one row too few",
    ],
)
def test_planted_faults_are_caught(fault: str) -> None:
    """Each of these changes ids, or breaks the engine's contract, within a few texts."""
    caught = 0
    for salt in range(12):
        script = Script(salt=salt, surprise=4)
        engine = FaultyEngine(script)
        options: dict[str, Any] = {"max_new_tokens": 60, "window": 3, "ngram": 4, "guesses": 4}
        expected = script.text([97, 98], 60)
        assert list(scripted_model(engine=engine).generate([97, 98], **options).output_ids) == (
            expected
        )
        engine.fault = fault
        try:
            found = scripted_model(engine=engine).generate([97, 98], **options)
        except AssertionError:
            caught += 1
        else:
            caught += list(found.output_ids) != expected
    assert caught >= 6


def test_the_script_depends_on_every_token_and_position() -> None:
    script = Script(surprise=1)
    tokens, positions = np.arange(8), np.arange(8)
    changed = []
    for index in range(8):
        for array in (tokens, positions):
            array[index] += 20
            changed.append(script.next_token(tokens, positions))
            array[index] -= 20
    assert len(set(changed)) > 4
    assert dataclasses.replace(script, salt=1) != script


def test_exact_runs_tested_widths_only() -> None:
    engine = ScriptedEngine(Script(surprise=3), capacity=400)
    model = scripted_model(engine=engine)
    model.generate("abcabcabc", mode="exact", cost="flat", max_width=13, max_new_tokens=200)
    assert len(set(engine.widths)) > 1
    assert set(engine.widths) <= {2, 4, 6, 8, 12}
    with pytest.raises(ConfigError, match=r"tested for steps of .* tokens, min_width is 7; choose"):
        model.generate("abc", mode="exact", min_width=7)
