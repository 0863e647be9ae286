"""The examples of the documentation do what they say."""

from __future__ import annotations

import configparser
import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fakes import Script, ScriptedEngine, scripted_model
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.serve import cli

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
CONFIG = GenerationConfig(max_new_tokens=8)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_batch_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    class Interrupted(ScriptedEngine):
        left = 12

        def step(self, *arguments: Any) -> Any:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
            return super().step(*arguments)

    batch, output = example("batch"), tmp_path / "answers.jsonl"
    prompts = ["ab", "é", "x" * 500, "cd", "ab"]
    config = GenerationConfig(max_new_tokens=8, mode="plain")
    with pytest.raises(KeyboardInterrupt):
        batch.answer_all(scripted_model(engine=Interrupted(Script())), prompts, output, config)
    assert [line["number"] for line in lines(output)] == [0]
    with output.open("ab") as file:
        file.write(b'{"number": 1, "prom')  # what a power cut leaves
    assert batch.answer_all(scripted_model(Script()), prompts, output, config) == 4
    found = lines(output)
    assert [line["number"] for line in found] == [0, 1, 2, 3, 4]
    assert [line["prompt"] for line in found] == prompts
    assert "--capacity" in found[2]["error"]
    for line in (*found[:2], *found[3:]):
        answer = scripted_model(Script()).generate(line["prompt"], config=config)
        assert (line["answer"], line["tokens"]) == (answer.text, 8)
    assert batch.answer_all(scripted_model(Script()), prompts, output, config) == 0
    assert lines(output) == found


def test_batch_as_a_command(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "in.txt").write_text("ab\n\ncd\n")
    arguments = [str(tiny_bundle), str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl")]
    monkeypatch.setattr(sys, "argv", ["batch.py", *arguments, "--max-new-tokens", "3"])
    assert example("batch").main() == 0
    assert [line["prompt"] for line in lines(tmp_path / "out.jsonl")] == ["ab", "cd"]
    monkeypatch.setattr(sys, "argv", ["batch.py", str(tmp_path), *arguments[1:]])
    assert example("batch").main() == 1


def test_embedded(
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    embed = example("embed")
    monkeypatch.setattr(embed, "CONFIG", CONFIG)
    monkeypatch.setattr(sys, "argv", ["embed.py", str(tiny_bundle)])
    assert embed.main() == 0
    assert "> Name another one.\n" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["embed.py", str(tmp_path / "absent")])
    assert embed.main() == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_answer_nobody_wants_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    embed = example("embed")
    monkeypatch.setattr(embed, "CONFIG", GenerationConfig(max_new_tokens=50, mode="plain"))
    engine = ScriptedEngine(Script())
    assistant = embed.Assistant(scripted_model(engine=engine))
    assert len(list(assistant.ask("ab", wanted=lambda: len(engine.widths) < 3))) == 4
    assert len(list(assistant.ask("ab"))) == 50


def test_the_units_command_line_is_one_of_ours() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / "lade-serve.service")
    program, *arguments = shlex.split(unit["Service"]["ExecStart"])
    assert program.endswith("/lade-serve")
    parsed = cli.build_parser().parse_args(arguments)
    assert float(unit["Service"]["TimeoutStopSec"]) > parsed.grace + 5
    assert cli.KEY_VARIABLE in (EXAMPLES / "lade-serve.service").read_text()


def test_the_proxy_goes_by_the_servers_defaults() -> None:
    text = (EXAMPLES / "nginx.conf").read_text()
    defaults = cli.build_parser().parse_args(["--engine", "x"])
    assert set(re.findall(r"proxy_pass http://(\S+);", text)) == {
        f"{defaults.host}:{defaults.port}"
    }
    (timeout,) = re.findall(r"proxy_read_timeout (\d+)s", text)
    assert int(timeout) > defaults.timeout
    assert "client_max_body_size 1m;" in text
    assert defaults.max_body == 1 << 20
    assert text.count("{") == text.count("}")
