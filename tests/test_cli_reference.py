"""docs/cli.md is what the parsers say, on any machine; `--version` is one sentence everywhere."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import cli_reference
import pytest

from lade_edge.runtime import cli

SCRIPTS = {
    "lade-export": "lade_edge.export.cli",
    "lade-run": "lade_edge.runtime.cli",
    "lade-bench": "lade_edge.runtime.bench.cli",
    "lade-serve": "lade_edge.runtime.serve.cli",
    "lade-doctor": "lade_edge.engines.doctor_cli",
    "lade-inspect": "lade_edge.engines.inspect_cli",
}


def test_the_page_is_what_the_parsers_say() -> None:
    hint = "run python tools/cli_reference.py"
    assert cli_reference.PAGE.read_text(encoding="utf-8") == cli_reference.reference(), hint


def test_the_page_is_the_same_everywhere_and_needs_no_torch() -> None:
    """A narrow terminal, another language, nothing heavy to import."""
    script = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys("
        "['torch', 'transformers', 'onnxruntime', 'starlette', 'onnx']))\n"
        "import cli_reference\n"
        "sys.argv[1:] = ['--check']\n"
        "sys.exit(cli_reference.main())"
    )
    tools = str(cli_reference.ROOT / "tools")
    path = os.pathsep.join([tools, os.environ.get("PYTHONPATH", "")])
    setting = {"COLUMNS": "31", "LANG": "de_DE.UTF-8", "PYTHONPATH": path}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | setting, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr


def test_a_changed_option_makes_the_page_stale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = cli.build_parser

    def changed() -> argparse.ArgumentParser:
        parser = build()
        parser.add_argument("--planted", help="not on the page")
        return parser

    monkeypatch.setattr(sys, "argv", ["cli_reference.py", "--check"])
    assert cli_reference.main() == 0
    monkeypatch.setattr(cli, "build_parser", changed)
    assert cli_reference.main() == 1
    assert "is stale; run python tools/cli_reference.py" in capsys.readouterr().err


def test_a_changed_help_text_makes_the_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = cli.build_parser()
    (action,) = [action for action in parser._actions if action.dest == "threads"]
    action.help = "planted"
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    monkeypatch.setattr(sys, "argv", ["cli_reference.py", "--check"])
    assert cli_reference.main() == 1


def test_a_page_that_is_missing_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_reference, "PAGE", tmp_path / "cli.md")
    monkeypatch.setattr(sys, "argv", ["cli_reference.py", "--check"])
    assert cli_reference.main() == 1
    monkeypatch.setattr(sys, "argv", ["cli_reference.py"])
    assert cli_reference.main() == 0
    assert (tmp_path / "cli.md").read_text(encoding="utf-8") == cli_reference.reference()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_command_says_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = cli_reference.parser_of(f"{SCRIPTS[name]}:main")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{name} {version('lade-edge')}\n"
    assert f"## {name}\n" in cli_reference.reference()
