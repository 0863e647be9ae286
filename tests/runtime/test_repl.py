from __future__ import annotations

import io
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import OpinionatedEngine, Script, ScriptedEngine, scripted_model
from lade_edge.engines.errors import ConfigError
from lade_edge.engines.protocol import Int64Array, StepResult
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.model import Model
from lade_edge.runtime.repl import converse
from lade_edge.runtime.settings import described, with_setting

Talk = Callable[..., tuple[list[str], str]]
CONFIG = GenerationConfig(max_new_tokens=6)


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Says lines, gives what came after each prompt on stdout, and stderr."""

    def talk(
        *lines: str | bytes, model: Model | None = None, **options: Any
    ) -> tuple[list[str], str]:
        data = b"\n".join(line.encode() if isinstance(line, str) else line for line in lines)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        converse(model or scripted_model(Script()), CONFIG, **options)
        out, err = capsys.readouterr()
        return [part.lstrip(". ").removesuffix("\n") for part in out.split("> ")[1:]], err

    return talk


def answer(prompt: Any, **options: Any) -> str:
    return scripted_model(Script()).generate(prompt, config=CONFIG, **options).text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a\\", "b\\", "c"], "a\nb\nc"),
        (['"""a', "", "  b", '"""'], "a\n\n  b"),
        (['"""a"""'], "a"),
        (['"""', "/exit", '"""x', '"""'], '/exit\n"""x'),
        ([" /x y"], " /x y"),
        (["a\\"], "a"),
        (['"""a', "b"], '"""a\nb'),
    ],
)
def test_texts_of_several_lines(talk: Talk, lines: list[str], message: str) -> None:
    out, err = talk(*lines)
    message = message.removeprefix('"""')
    assert (out[0].removeprefix("\n"), err) == (answer(message), "")  # a newline ends the input


def test_options_change_within_a_conversation(talk: Talk) -> None:
    out, err = talk(
        "/set", "/set max-new-tokens=3", "ab", "/set", "/set stop=[]", "/set top_k", "/set x=1",
        "/set temperature=hot",
    )  # fmt: skip
    assert out[0] == "max_new_tokens=6"
    assert out[2] == answer("ab", max_new_tokens=3)
    assert out[3] == "max_new_tokens=3"
    assert "'top_k' sets nothing; expected key=value" in err
    assert "there is no option 'x'; options are mode, window" in err
    assert "temperature is 'hot'; expected a number from 0 to 100" in err
    assert err.count("\n") == 3


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("temperature=0.5", "temperature", 0.5),
        ("--max-new-tokens=7", "max_new_tokens", 7),
        (" mode = plain", "mode", "plain"),
        ("seed=null", "seed", None),
        ("stop=a b", "stop", ("a b",)),
        ('stop=["a", "\\n"]', "stop", ("a", "\n")),
        ("stop=null", "stop", ()),
        ("ignore_eos=true", "ignore_eos", True),
        ('logit_bias={"97": -2}', "logit_bias", {97: -2.0}),
        ("logit_bias=null", "logit_bias", {}),
        ("eos_token_ids=[5]", "eos_token_ids", (5,)),
    ],
)
def test_settings(text: str, name: str, value: object) -> None:
    changed = with_setting(GenerationConfig(seed=5), text)
    assert getattr(changed, name) == value
    assert described(GenerationConfig()) == "all options have their defaults"
    if value and name != "seed":
        assert f"{name}=" in described(changed)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ignore_eos=yes", "expected true or false"),
        ("stop=[1]", "expected a list of texts"),
        ("eos_token_ids=x", "expected a list of token ids"),
        ("logit_bias=5", "expected an object like"),
        ('logit_bias={"x": 1}', "expected an object like"),
        ("window=3", "mode lookahead"),
        ("reuse_prefix=true", "no option"),
        ("max_new_tokens=" + "[" * 100_000, "expected a whole number"),
    ],
)
def test_settings_that_cannot_be(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        with_setting(GenerationConfig(mode="plain"), text)


def test_saving(talk: Talk, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    _, err = talk("é", f"/save {file}", "/save", f"/save {tmp_path}", system="s")
    messages = json.loads(file.read_text(encoding="utf-8"))["messages"]
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[1]["content"] == "é"
    assert messages[2]["content"] == answer("é", system="s")
    first, second = err.splitlines()
    assert first.startswith("/save needs the name of a file")
    assert second.startswith(f"{tmp_path} can't be written")


def test_figures_of_the_last_answer(talk: Talk) -> None:
    out, err = talk("/stats", "ab", "/stats")
    assert "there is no whole answer yet" in err
    assert "tokens a step" in out[2]


class Counting(ScriptedEngine):
    prefilled = 0

    def prefill(self, tokens: Int64Array) -> StepResult:
        self.prefilled += len(tokens)
        return super().prefill(tokens)


def test_follow_up_turns_run_only_what_is_new(talk: Talk) -> None:
    engine = Counting(Script(), capacity=200)
    talk("ab", "cd", model=scripted_model(engine=engine))
    whole = len("[user]ab\n[assistant]") + 6 + len("\n[user]cd\n[assistant]")
    assert engine.prefilled == whole - 6 + 1  # of the answer only its last token ran again


def test_ctrl_c_between_steps_keeps_session_and_cache(talk: Talk) -> None:
    class Pressed(Counting):
        def step(self, *arguments: Any) -> Any:
            if len(self.widths) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().step(*arguments)

    before = signal.getsignal(signal.SIGINT)
    engine = Pressed(Script(), capacity=200)
    out, err = talk(
        "/set mode=plain", "ab", "c", model=scripted_model(engine=engine), show_stats=True
    )
    stopped = answer("ab")[:4]  # the prefill's token and three steps
    assert out[1] == stopped
    turns = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": stopped},
        {"role": "user", "content": "c"},
    ]
    assert out[2] == answer(turns)
    assert engine.prefilled == len("[user]ab\n[assistant]") + len("\n[user]c\n[assistant]") + 1
    assert err.count("tokens a step") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_interrupts_a_step(talk: Talk) -> None:
    class Pressed(Counting):
        def prefill(self, tokens: Int64Array) -> StepResult:
            if not self.prefilled:
                self.prefilled = 1
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().prefill(tokens)

    out, err = talk("ab", "/reset", "ab", model=scripted_model(engine=Pressed(Script())))
    assert (out[0], out[2], err) == ("", answer("ab"), "")


def test_input_that_is_no_text_is_refused_in_one_sentence(talk: Talk) -> None:
    out, err = talk(b"a\xff", "ab")
    assert "the prompt is not valid text" in err
    assert err.count("\n") == 1
    assert out[1] == answer("ab")


def test_special_tokens_are_text_unless_asked(talk: Talk) -> None:
    assert talk("<|eos|>")[0][0] == answer("<|eos|>")
    assert talk("<|eos|>", special_tokens=True)[0][0] == answer("<|eos|>", special_tokens=True)


def test_sampled_answers_can_be_had(talk: Talk) -> None:
    model = scripted_model(engine=OpinionatedEngine(Script()))
    drawn = talk("/set temperature=1", "/set seed=3", "ab", model=model)[0][2]
    again = scripted_model(engine=OpinionatedEngine(Script()))
    assert drawn == again.generate("ab", config=CONFIG, temperature=1, seed=3).text
