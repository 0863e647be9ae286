from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes import EOS, Script, ScriptedEngine, scripted_model
from lade_edge import runtime
from lade_edge.engines.errors import CapacityError, ConfigError
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.model import Model, load


def test_text_messages_and_ids() -> None:
    model = scripted_model()
    ids = [*b"[user]ab\n[assistant]"]
    expected = model.generate(ids, max_new_tokens=9)
    assert model.generate("ab", max_new_tokens=9).output_ids == expected.output_ids
    messages = [{"role": "user", "content": "ab"}]
    assert model.generate(messages, max_new_tokens=9).output_ids == expected.output_ids
    assert expected.prompt_tokens == len(ids)
    assert model.generate("ab", raw=True, max_new_tokens=9).prompt_tokens == 2


def test_options_replace_those_of_the_config() -> None:
    config = GenerationConfig(max_new_tokens=5, mode="plain")
    found = scripted_model().generate("ab", config=config, max_new_tokens=3)
    assert (len(found.output_ids), found.mode) == (3, "plain")
    with pytest.raises(TypeError, match="temperatur"):
        scripted_model().generate("ab", temperatur=1)


def test_nothing_runs_for_no_tokens() -> None:
    engine = ScriptedEngine()
    found = scripted_model(engine=engine).generate("ab", max_new_tokens=0)
    assert (found.text, found.output_ids, found.finish_reason) == ("", (), "length")
    assert engine.num_resets == 0
    assert found.stats.tokens == 0


def test_the_first_token_passes_the_boundary_too() -> None:
    script = Script(alphabet=(EOS,), surprise=10**9)
    engine = ScriptedEngine(script)
    found = scripted_model(engine=engine).generate("ab", max_new_tokens=9)
    assert (found.output_ids, found.text, found.finish_reason) == ((EOS,), "", "eos")
    assert engine.widths == []
    found = scripted_model(Script(alphabet=(97,))).generate("ab", stop="a", max_new_tokens=9)
    assert (found.output_ids, found.text, found.finish_reason) == ((97,), "", "stop")


def test_more_end_tokens() -> None:
    model = scripted_model(Script(alphabet=(97,)))
    found = model.generate("ab", max_new_tokens=9, eos_token_ids=(97,))
    assert (found.output_ids, found.finish_reason) == ((97,), "eos")


def test_shown_special_tokens() -> None:
    model = scripted_model(Script(alphabet=(EOS,)))
    assert model.generate("ab", skip_special_tokens=False).text == "<|eos|>"


def test_ignored_end_tokens_are_drafted_like_others() -> None:
    model = scripted_model(Script(alphabet=(EOS,)))
    found = model.generate("ab", ignore_eos=True, max_new_tokens=20, window=0, guesses=1)
    assert (len(found.output_ids), found.finish_reason) == (20, "length")
    assert found.stats.tokens_per_step > 2


@pytest.mark.parametrize("extra", [0, 5])
def test_a_prompt_without_room_is_refused_before_anything_runs(extra: int) -> None:
    engine = ScriptedEngine(capacity=8)
    with pytest.raises(
        CapacityError, match=rf"{8 + extra} tokens and 7 new.* 8 in all.*--capacity"
    ):
        scripted_model(engine=engine).generate([97] * (8 + extra), max_new_tokens=7)
    assert engine.num_resets == 0


@pytest.mark.parametrize(
    ("mode", "option"),
    [
        *((mode, "min_width") for mode in ("plain", "lookahead", "auto", "exact")),
        *((mode, "max_width") for mode in ("auto", "exact")),
    ],
)
def test_a_width_the_engine_was_not_opened_for_names_both_numbers(mode: str, option: str) -> None:
    options: dict[str, Any] = {"mode": mode, option: 17}
    engine = ScriptedEngine(max_width=16)
    model = scripted_model(engine=engine)
    with pytest.raises(ConfigError, match=rf"{option} is 17, .*at most 16 tokens; lower it"):
        model.generate("ab", **options)
    assert engine.num_resets == 0
    assert engine.widths == []


def test_a_batch_of_prompts_is_refused_before_anything_runs() -> None:
    engine = ScriptedEngine()
    model = scripted_model(engine=engine)
    message = {"role": "user", "content": "ab"}
    batches: list[Any] = [["ab", "cd"], [[97, 98], [99]], [[message], [message]], np.ones((2, 3))]
    for batch in batches:
        with pytest.raises(ConfigError, match=r"a list of 2 prompts; expected a single one"):
            model.generate(batch)
    assert engine.num_resets == 0
    assert engine.widths == []


@pytest.mark.parametrize("name", ["json_schema", "grammar", "response_format", "lora", "adapter"])
def test_what_does_not_exist_is_refused_before_anything_runs(name: str) -> None:
    engine = ScriptedEngine()
    options: dict[str, Any] = {name: "x"}
    with pytest.raises(TypeError, match=name):
        scripted_model(engine=engine).generate("ab", **options)
    assert engine.num_resets == 0


def test_ids_the_model_does_not_know() -> None:
    for ids in ([97, 260], [-1]):
        with pytest.raises(ConfigError, match="knows 0 to 259"):
            scripted_model().generate(ids)


def test_an_abandoned_stream_leaves_the_engine_clean() -> None:
    engine = ScriptedEngine()
    model = scripted_model(engine=engine)
    expected = scripted_model().generate("ab", max_new_tokens=30)
    with model.stream("abc", max_new_tokens=30) as stream:
        next(stream)
        next(stream)
        assert engine.length > 0
    assert engine.length == 0
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="closed before its end"):
        _ = stream.result
    assert model.generate("ab", max_new_tokens=30).output_ids == expected.output_ids


def test_a_new_generation_ends_a_stream_that_still_runs() -> None:
    model = scripted_model()
    first = model.stream("abc", max_new_tokens=30)
    next(first)
    second = model.stream("ab", max_new_tokens=30)
    events = [next(second)]
    with pytest.raises(RuntimeError, match="ended by a newer request"):
        next(first)
    first.close()
    events += second
    expected = scripted_model().generate("ab", max_new_tokens=30)
    assert second.result.output_ids == expected.output_ids
    assert "".join(event.text for event in events) == expected.text


def test_a_refused_request_leaves_a_running_stream_alone() -> None:
    model = scripted_model()
    stream = model.stream("ab", max_new_tokens=30)
    next(stream)
    with pytest.raises(ConfigError):
        model.stream("")
    assert stream.result.output_ids == scripted_model().generate("ab", max_new_tokens=30).output_ids


def test_an_engine_that_fails_leaves_no_slots() -> None:
    engine = ScriptedEngine(max_width=8)
    model = scripted_model(engine=engine)
    stream = model.stream("ab", max_new_tokens=30)
    next(stream)
    engine.step = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        list(stream)
    assert engine.length == 0


@pytest.mark.parametrize("options", [{"threads": 0}, {"capacity": -1}, {"max_width": 0}])
def test_load_refuses_senseless_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected 1 or more"):
        load("nowhere", **options)


def test_public_names_are_found_when_used() -> None:
    for name in runtime.__all__:
        assert getattr(runtime, name).__name__ == name
    assert set(runtime.__all__) <= set(dir(runtime))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = runtime.nonsense


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys; import lade_edge.runtime; import lade_edge.runtime.cli as cli;"
        "cli.build_parser();"
        "heavy = {'tokenizers', 'jinja2', 'rich', 'onnxruntime'} & set(sys.modules);"
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_measuring_never_disturbs_a_running_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = scripted_model(Script())
    model = Model(source.engine, source.prompts, eos=frozenset({EOS}))
    stream = model.stream("ab", mode="plain", max_new_tokens=20)
    next(stream)
    model.profile()
    with pytest.raises(RuntimeError, match="ended by a newer request"):
        next(stream)
    assert model.engine.length == 0


def test_nothing_is_measured_for_no_tokens() -> None:
    source = scripted_model(Script())
    model = Model(source.engine, source.prompts, eos=frozenset({EOS}))
    assert model.generate("ab", max_new_tokens=0).output_ids == ()
    assert source.engine.widths == []  # type: ignore[attr-defined]


def test_a_refused_request_leaves_the_running_stream_alone() -> None:
    model = scripted_model(Script())
    stream = model.stream("ab", max_new_tokens=20)
    next(stream)
    with pytest.raises(ConfigError):
        model.stream("ab", max_width=100_000)
    assert len(stream.result.output_ids) == 20


@pytest.mark.parametrize("prompt", [None, 5, b"abc", [1.5], ["1", "2"], {"role": "user"}, {1}])
def test_prompts_of_the_wrong_type(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="the prompt is"):
        scripted_model().generate(prompt)


@pytest.mark.parametrize("option", [{"max_new_tokens": 2.5}, {"seed": "1"}, {"window": "3"}])
def test_options_of_the_wrong_type(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="expected a whole number"):
        scripted_model().generate("ab", **option)
