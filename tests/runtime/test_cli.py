from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import EOS, OpinionatedEngine, Script, ScriptedEngine, scripted_model
from lade_edge.engines.errors import ManifestError
from lade_edge.runtime import cli
from lade_edge.runtime import model as model_module
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.generation import Stream
from lade_edge.runtime.model import Model

Run = Callable[..., tuple[int, str, str]]


class Loader:
    """Stands in for `load`, remembers how it was called."""

    def __init__(self) -> None:
        self.model = scripted_model(Script(rare=(EOS,)))
        self.path = ""
        self.options: dict[str, Any] = {}

    def __call__(self, path: str, **options: Any) -> Model:
        self.path = path
        self.options = options
        return self.model


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> Loader:
    loader = Loader()
    monkeypatch.setattr(model_module, "load", loader)
    return loader


@pytest.fixture
def run(loader: Loader, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        try:
            code = cli.main(["--engine", "bundle", *arguments])
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 99
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_streams_the_answer(run: Run, loader: Loader) -> None:
    expected = loader.model.generate("ab", max_new_tokens=20)
    assert run("ab", "-n", "20") == (0, expected.text + "\n", "")
    assert loader.path == "bundle"
    assert loader.options.pop("progress") is not None
    assert loader.options == {"threads": None, "capacity": None, "max_width": 128, "device": "cpu"}


def test_prompt_from_a_file_or_stdin(run: Run, loader: Loader, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("é b\n\n".encode())
    expected = loader.model.generate("é b\n", max_new_tokens=9).text + "\n"
    assert run("--file", str(file), "-n", "9")[1] == expected
    assert run("-n", "9", stdin="é b\n\n".encode())[1] == expected


def test_json_is_one_object(run: Run, loader: Loader) -> None:
    code, out, err = run("--json", "--mode", "plain", "ab", "--max-new-tokens", "7")
    assert (code, err) == (0, "")
    found = json.loads(out)
    expected = loader.model.generate("ab", max_new_tokens=7, mode="plain")
    assert found["text"] == expected.text
    assert found["output_ids"] == list(expected.output_ids)
    assert found["prompt_tokens"] == expected.prompt_tokens
    assert found["finish_reason"] == expected.finish_reason
    assert found["stats"]["steps"] == expected.stats.steps
    assert found["stats"]["tokens"] == len(found["output_ids"])


def test_options_reach_the_generation(run: Run, loader: Loader) -> None:
    arguments = [
        *("--window", "5", "--ngram", "4", "--guesses", "3", "--seed", "7", "--ignore-eos"),
        *("--stop", "zz", "--stop", "yy", "--raw", "-n", "30", "--json"),
    ]
    found = json.loads(run("ab", *arguments)[1])
    assert (found["window"], found["ngram"], found["guesses"]) == (5, 4, 3)
    assert found["prompt_tokens"] == 2
    assert len(found["output_ids"]) == 30
    stopped = json.loads(run("ab", "--raw", "--stop", "a", "--stop", "b", "--json")[1])
    assert stopped["finish_reason"] == "stop"
    assert "a" not in stopped["text"]
    with_system = json.loads(run("ab", "--system", "x", "-n", "3", "--json")[1])
    assert with_system["prompt_tokens"] == len("[system]x\n[user]ab\n[assistant]")


def test_sampling_options_reach_the_generation(run: Run, loader: Loader) -> None:
    loader.model = scripted_model(engine=OpinionatedEngine(Script(rare=(EOS,))))
    options: dict[str, Any] = {
        "temperature": 0.7, "top_k": 7, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.95,
        "repetition_penalty": 1.2, "presence_penalty": -0.5, "frequency_penalty": 0.1,
        "no_repeat_ngram_size": 6, "min_new_tokens": 12, "seed": 3,
    }  # fmt: skip
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    flags += ["--logit-bias", "97=1.5", "--logit-bias", "98=-inf", "-n", "30"]
    expected = GenerationConfig(
        max_new_tokens=30, logit_bias={97: 1.5, 98: float("-inf")}, **options
    )
    asked = []
    stream = loader.model.stream

    def remember(*arguments: Any, **keywords: Any) -> Stream:
        asked.append(keywords["config"])
        return stream(*arguments, **keywords)

    loader.model.stream = remember  # type: ignore[method-assign]
    found = json.loads(run("ab", "--json", *flags)[1])
    assert asked == [expected]
    assert found["output_ids"] == list(
        scripted_model(engine=OpinionatedEngine(Script(rare=(EOS,))))
        .generate("ab", config=expected)
        .output_ids
    )
    assert found["seed"] == 3


def test_a_drawn_text_can_be_repeated(run: Run, loader: Loader) -> None:
    loader.model = scripted_model(engine=OpinionatedEngine())
    drawn = json.loads(run("ab", "--json", "-n", "20", "--temperature", "1")[1])
    again = run("ab", "--json", "-n", "20", "--temperature", "1", "--seed", str(drawn["seed"]))
    assert json.loads(again[1])["output_ids"] == drawn["output_ids"]
    assert (
        f"{drawn['seed']}"
        in run("ab", "-n", "9", "--stats", "--temperature", "1", "--seed", str(drawn["seed"]))[2]
    )


def test_load_options(run: Run, loader: Loader) -> None:
    run("ab", "--threads", "2", "--capacity", "99", "--window", "30", "--ngram", "5", "-n", "0")
    assert loader.options.pop("progress") is not None
    assert loader.options == {"threads": 2, "capacity": 99, "max_width": 136, "device": "cpu"}
    run("ab", "--window", "1000", "--ngram", "1000")
    assert loader.options["max_width"] == 1024


def test_figures_go_to_stderr(run: Run) -> None:
    code, out, err = run("ab", "--stats", "-n", "5")
    assert code == 0
    assert "tokens a step" in err
    assert "tokens a step" not in out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ab", "-n", "-1"], "max_new_tokens is -1; expected 0 or more"),
        (["ab", "--ngram", "1"], "ngram is 1; expected 2 to 1000"),
        (["ab", "--window", "-3"], "window is -3"),
        (["ab", "--seed", "-3"], "seed is -3"),
        (["ab", "--stop", ""], "stop text is empty"),
        (["ab", "--temperature", "-1"], "temperature is -1.0; expected a number from 0 to 100"),
        (["ab", "--temperature", "nan"], "temperature is nan"),
        (["ab", "--temperature", "1", "--top-p", "2"], "top_p is 2.0; expected"),
        (["ab", "--logit-bias", "999=1"], "token 999; the model knows 0 to 259"),
        (["ab", "--min-new-tokens", "300"], "min_new_tokens is 300, max_new_tokens 256"),
        (["ab", "--window", "40", "--ngram", "5"], "at most 64; try window"),
        ([""], "the prompt is empty"),
        (["x" * 500], "--capacity"),
        (["x" * 1_000_000], "--capacity"),
        (["a\udcff"], "the prompt is not valid text"),
        (["--raw", "a\udcff"], "the prompt is not valid text"),
        (["--file", "no/such/file"], "no/such/file can't be read"),
        (["--file", "."], "can't be read"),
        ([], "the prompt is empty"),
    ],
)
def test_one_line_and_exit_1(run: Run, arguments: list[str], reason: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.startswith("lade-run: ")
    assert err.count("\n") == 1
    assert reason in err


def test_control_characters_are_text(run: Run, loader: Loader) -> None:
    data = bytes(range(1, 128)).replace(b"\n", b"") + b"\0"
    expected = loader.model.generate(data.decode(), raw=True, max_new_tokens=0)
    found = json.loads(run("--raw", "--json", "-n", "0", stdin=data)[1])
    assert found["prompt_tokens"] == expected.prompt_tokens == len(data)


def test_a_file_that_is_not_utf8(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"ab\xff")
    assert "not UTF-8 (byte 0xff at offset 2)" in run("--file", str(file))[2]
    assert "stdin is not UTF-8" in run(stdin=b"\xff")[2]


def test_a_model_without_a_template(run: Run, loader: Loader) -> None:
    loader.model = scripted_model(template=None)
    code, _, err = run("ab")
    assert code == 1
    assert err == "lade-run: the model has no chat template; pass raw text (--raw)\n"
    assert run("ab", "--raw")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["ab", "--nonsense"], "--nonsense"),
        (["ab", "--win", "3"], "--win"),
        (["ab", "--json-schema", "x.json"], "--json-schema"),
        (["ab", "--lora", "adapter"], "--lora"),
        (["ab", "--window", "x"], "invalid int value: 'x'"),
        (["ab", "--mode", "fast"], "plain"),
        (["ab", "--file", "x"], "a prompt and --file"),
        (["ab", "--top-p", "0.9"], "--top-p narrows what is drawn; add --temperature"),
        (["ab", "--logit-bias", "5"], "'5' is no bias; expected a token id and a number"),
        (["ab", "--logit-bias", "x=1"], "like 42=-1.5"),
        (["ab", "--raw", "--system", "x"], "--system needs the chat template"),
        (["ab", "--chat"], "--chat doesn't go with a prompt"),
        (["--chat", "--json"], "--chat doesn't go with --json"),
        (["ab", "--json", "--color"], "--color is for streamed text"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(run: Run, arguments: list[str], reason: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert reason in err
    assert "--help" in err


def test_no_prompt_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.TextIOWrapper):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(io, "TextIOWrapper", Terminal)
    code, _, err = run()
    assert code == 2
    assert "no prompt" in err


def test_help_and_version(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "(default: 256)" in out
    code, out, _ = run("--version")
    assert code == 0
    assert out.startswith("lade-run ")


def test_errors_of_loading(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str, **options: Any) -> Model:
        raise ManifestError(f"{path} does not exist")

    monkeypatch.setattr(model_module, "load", load)
    assert run("ab") == (1, "", "lade-run: bundle does not exist\n")


def test_interrupted(run: Run, loader: Loader) -> None:
    class Interrupted(ScriptedEngine):
        def step(self, *arguments: Any) -> Any:
            raise KeyboardInterrupt

    loader.model = scripted_model(engine=Interrupted())
    assert run("ab")[0] == 130


def test_a_reader_that_left(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert cli.main(["--engine", "bundle", "ab"]) == 0


def test_conversation(run: Run, loader: Loader) -> None:
    first = loader.model.generate("ab", max_new_tokens=5).text
    history = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "c"},
    ]
    second = loader.model.generate(history, max_new_tokens=5).text
    lines = ["ab", "", "/help", "/nonsense x", "c", "/reset", "ab", "/exit", "never"]
    code, out, err = run("--chat", "-n", "5", stdin="\n".join(lines).encode())
    assert (code, err) == (0, "unknown command /nonsense; /help lists them\n")
    answers = [part for part in out.split("> ") if part]
    assert answers[0] == first + "\n"
    assert answers[1].startswith("/help ")
    assert answers[2:] == [second + "\n", first + "\n"]


def test_text_that_came_several_tokens_a_step_is_coloured(run: Run, loader: Loader) -> None:
    options = ["-n", "30", "--cost", "flat"]
    stream = loader.model.stream("ab", max_new_tokens=30, cost="flat")
    expected = ""
    for event in stream:
        expected += f"\x1b[32m{event.text}\x1b[0m" if len(event.ids) > 1 else event.text
    assert "\x1b[32m" in expected
    assert run("ab", "--color", *options)[1] == expected + "\n"
    assert run("ab", *options)[1] == stream.result.text + "\n"
    assert expected in run("--chat", "--color", *options, stdin=b"ab\n")[1]


def test_special_tokens_in_a_prompt_count_when_asked(run: Run) -> None:
    plain = json.loads(run("<|eos|>", "--raw", "--json", "-n", "1")[1])
    asked = json.loads(run("<|eos|>", "--raw", "--json", "-n", "1", "--special-tokens")[1])
    assert (plain["prompt_tokens"], asked["prompt_tokens"]) == (7, 1)


def test_a_conversation_ends_with_its_input(run: Run) -> None:
    code, _, err = run("--chat", "--stats", "-n", "3", stdin=b"ab\n")
    assert code == 0
    assert "tokens a step" in err


def test_a_message_that_does_not_fit_leaves_the_conversation_alone(
    run: Run, loader: Loader
) -> None:
    lines = ["x" * 500, "ab"]
    code, out, err = run("--chat", "-n", "5", stdin="\n".join(lines).encode())
    assert code == 0
    assert "--capacity" in err
    assert loader.model.generate("ab", max_new_tokens=5).text in out


def test_ctrl_c_stops_an_answer_and_keeps_it(run: Run, loader: Loader) -> None:
    class Interrupted(ScriptedEngine):
        interrupted = False

        def step(self, *arguments: Any) -> Any:
            if not self.interrupted and len(self.widths) == 2:
                self.interrupted = True
                raise KeyboardInterrupt
            return super().step(*arguments)

    loader.model = scripted_model(Script(), engine=Interrupted(Script()))
    code, out, _ = run("--chat", "-n", "9", "--mode", "plain", stdin=b"ab\nc\n")
    assert code == 0
    whole = scripted_model(Script()).generate("ab", max_new_tokens=9).text
    answers = [part for part in out.split("> ") if part.strip()]
    assert answers[0] == whole[:3] + "\n"
    history = [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": whole[:3]},
        {"role": "user", "content": "c"},
    ]
    assert answers[1] == scripted_model(Script()).generate(history, max_new_tokens=9).text + "\n"


def test_a_pool_goes_on_from_run_to_run(run: Run, loader: Loader, tmp_path: Path) -> None:
    pool = str(tmp_path / "pool.json")
    runs = []
    for _ in range(2):
        loader.model = scripted_model(Script(surprise=1, rare=(EOS,)))
        code, out, err = run("ab", "--json", "-n", "60", "--pool", pool)
        assert (code, err) == (0, "")
        runs.append(json.loads(out))
    assert runs[0]["output_ids"] == runs[1]["output_ids"]
    assert runs[1]["stats"]["steps"] < runs[0]["stats"]["steps"]
    (tmp_path / "pool.json").write_text("x")
    code, out, err = run("ab", "--pool", pool)
    assert (code, out) == (1, "")
    assert "expected a pool file" in err
    assert err.count("\n") == 1
    assert (tmp_path / "pool.json").read_text() == "x"
