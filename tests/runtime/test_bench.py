from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes import EOS, Script, ScriptedEngine, scripted_model
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime import model as model_module
from lade_edge.runtime.bench import cli as bench_cli
from lade_edge.runtime.bench.comparison import run_bench
from lade_edge.runtime.bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from lade_edge.runtime.generation import Generation
from lade_edge.runtime.prompt import Prompt

ROWS = (
    {"id": 1, "category": "a", "turns": ["ab", "later"]},
    {"id": "x", "category": "b", "prompt": "ba"},
    {"id": "y", "category": "a", "turns": ["abc"]},
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def test_rows_are_chat_or_raw(prompts: Path) -> None:
    found = [(p.id, p.category, p.text, p.raw) for p in read_prompts(prompts)]
    assert found == [("1", "a", "ab", False), ("x", "b", "ba", True), ("y", "a", "abc", False)]


@pytest.mark.parametrize(
    "line", ["{", "[]", "1", '{"id": 1}', '{"id": 1, "category": "a", "turns": []}',
             '{"id": 1, "category": "a", "turns": "hello"}', "[" * 100_000,
             '{"id": 1, "category": "a", "prompt": 3}', '{"id": 1, "category": "a", "prompt": ""}'],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line)
    with pytest.raises(ConfigError, match=r"bad\.jsonl, line 2 is no prompt"):
        read_prompts(path)


def test_no_rows_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no prompts"):
        read_prompts(tmp_path / "empty")
    with pytest.raises(ConfigError, match="can't be read"):
        read_prompts(tmp_path / "absent")


def test_categories_are_summed_and_ids_compared(prompts: Path) -> None:
    result = run_bench(
        scripted_model(Script()),
        read_prompts(prompts),
        max_new_tokens=20,
        rounds=2,
        ignore_eos=False,
    )
    assert [(row.category, row.prompts) for row in result["categories"]] == [("a", 2), ("b", 1)]
    assert all(row.ids_equal and row.ratio > 0 for row in result["categories"])
    assert result["geomean_tokens_per_step"] >= 1.0


def test_our_own_prompts_can_be_read() -> None:
    prompts = read_prompts(OWN_PROMPTS)
    assert len({prompt.id for prompt in prompts}) == len(prompts) >= 12
    assert len({prompt.category for prompt in prompts}) >= 6


@pytest.mark.parametrize("form", ["md", "csv", "json"])
def test_the_command_prints_every_category(
    form: str, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_module, "load", lambda *_, **__: scripted_model(Script()))
    arguments = ["--engine", "x", "--prompts", str(prompts), "-n", "9", "--rounds", "1", "-o", form]
    assert bench_cli.main([*arguments, "--curve"]) == 0
    out = capsys.readouterr().out
    if form == "json":
        found = json.loads(out)
        assert {row["category"] for row in found["categories"]} == {"a", "b"}
        assert found["geomean_ratio"] > 0
        assert all(0 <= row["host_share"] <= 1 for row in found["categories"])
        assert {"1", "2", "8", "16"} <= set(found["curve_ms"])
        assert found["card"]["bandwidth_gb_s"] > 0
        assert sum(found["auto_widths"].values()) > 0
        assert found["peak_memory_mb"] > 1
    elif form == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert [row["category"] for row in rows] == ["a", "b"]
        assert all(float(row["ratio"]) > 0 for row in rows)
    else:
        assert out.index("GB/s") < out.index("| a | 2 |") < out.index("| tokens a step | 1 | 2 |")


def test_a_picture_of_it(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    pytest.importorskip("matplotlib", reason="matplotlib draws the picture")
    monkeypatch.setattr(model_module, "load", lambda *_, **__: scripted_model(Script()))
    base = ["--engine", "x", "--prompts", str(prompts), "-n", "9", "--rounds", "1", "--plot"]
    assert bench_cli.main([*base, str(tmp_path / "bench.png")]) == 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert bench_cli.main([*base, str(tmp_path / "absent" / "bench.png")]) == 1
    assert "expected a .png in a folder that exists" in capsys.readouterr().err


def test_a_picture_without_matplotlib(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert bench_cli.main(["--engine", "x", "--plot", "a.png"]) == 1
    assert "pip install 'lade-edge[bench]'" in capsys.readouterr().err


def test_the_gain_over_plain_decoding_is_printed(
    prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model_module, "load", lambda *_, **__: scripted_model(Script()))
    arguments = ["--engine", "x", "--prompts", str(prompts), "-n", "9", "--rounds", "1"]
    assert bench_cli.main([*arguments, "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)["categories"]
    for row in rows:
        speeds = row["auto_tokens_per_second"], row["plain_tokens_per_second"]
        assert row["ratio"] == pytest.approx(speeds[0] / speeds[1])  # of a single round
    assert bench_cli.main(arguments) == 0
    out = capsys.readouterr().out
    head, _, *lines = out[out.index("| category |") :].splitlines()
    column = [cell.strip() for cell in head.split("|")].index("ratio")
    assert len(lines) == len(rows) + 1
    assert all(float(line.split("|")[column]) > 0 for line in lines[:-1])
    assert lines[-1].startswith("| geometric mean |")


@pytest.mark.parametrize("ignore", [False, True])
def test_end_tokens_are_honoured_unless_they_are_ignored(
    ignore: bool,
    prompts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = scripted_model(Script(rare=(EOS,) * 9, surprise=2))
    lengths: list[int] = []
    generate = model.generate

    def remember(prompt: Prompt, **options: Any) -> Generation:
        generation = generate(prompt, **options)
        if options["max_new_tokens"] == 30:  # not the one that warms up
            lengths.append(len(generation.output_ids))
        return generation

    monkeypatch.setattr(model, "generate", remember)
    monkeypatch.setattr(model_module, "load", lambda *_, **__: model)
    arguments = ["--engine", "x", "--prompts", str(prompts), "-n", "30", "--rounds", "2"]
    assert bench_cli.main([*arguments, *(["--ignore-eos"] if ignore else [])]) == 0
    assert len(lengths) == 2 * 2 * len(ROWS)
    assert (min(lengths) == 30) == ignore
    assert "DIFFERENT" not in capsys.readouterr().out


def test_mistakes_are_one_line(prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_cli.main(["--engine", "absent", "--prompts", str(prompts)]) == 1
    assert bench_cli.main(["--engine", "x", "--prompts", str(prompts), "--rounds", "0"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_prompt_that_cant_run_is_named_before_any_runs() -> None:
    model = scripted_model(Script(), capacity=20)
    rows = [BenchPrompt(id="long", category="a", text="ab" * 20, raw=True)]
    with pytest.raises(
        ConfigError, match=r"prompt long has 40 tokens and 9 new .* 20 in all; .*--capacity"
    ):
        run_bench(model, rows, max_new_tokens=9, rounds=1, ignore_eos=False)
    assert model.engine.widths == []  # type: ignore[attr-defined]


def test_an_interruption_keeps_the_complete_rounds(prompts: Path) -> None:
    def stop(done: int, total: int) -> None:
        assert total == 9
        if done == 7:
            raise KeyboardInterrupt

    def run(progress: Callable[[int, int], None]) -> dict[str, Any]:
        return run_bench(
            scripted_model(Script()), read_prompts(prompts), max_new_tokens=9, rounds=3,
            ignore_eos=False, progress=progress,
        )  # fmt: skip

    result = run(stop)
    assert result["rounds"] == 2
    assert [row.prompts for row in result["categories"]] == [2, 1]

    def at_once(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(at_once)


def test_prefill_and_decoding_are_timed_apart(prompts: Path) -> None:
    """An engine that is slow with prompts shows it in the one figure, and not in the other."""
    seconds = 0.1

    class Slow(ScriptedEngine):
        slept = 0.0

        @property
        def run_s(self) -> float:
            return self.slept

        def prefill(self, tokens: Any) -> Any:
            time.sleep(seconds)
            self.slept = seconds
            return super().prefill(tokens)

        def step(self, *arguments: Any) -> Any:
            self.slept = 0.0
            return super().step(*arguments)

    model = scripted_model(engine=Slow(Script()))
    result = run_bench(model, read_prompts(prompts), max_new_tokens=20, rounds=1, ignore_eos=False)
    for row in result["categories"]:
        lengths = [
            len(model.prompts.encode(prompt.text, raw=prompt.raw))
            for prompt in read_prompts(prompts)
            if prompt.category == row.category
        ]
        mean = sum(lengths) / len(lengths)
        assert row.prefill_tokens_per_second == pytest.approx(mean / seconds)
        assert row.plain_tokens_per_second > 20 / seconds
