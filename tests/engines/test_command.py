from __future__ import annotations

import subprocess
import sys

import pytest

from lade_edge.engines import ConfigError
from lade_edge.engines.command import CommandParser, run_command


def outcome(body: str, redirect: str) -> tuple[int, str]:
    """Run a body as a command of its own, with its streams redirected by a shell."""
    script = (
        "import sys; from lade_edge.engines.command import run_command\n"
        f"def body():\n    {body}\n"
        "sys.exit(run_command('prog', body))"
    )
    ended = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {redirect}', sys.executable, script],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("redirect", "code", "message"),
    [
        (">/dev/full", 1, "prog: the output can't be written (No space left on device)"),
        (">&-", 1, "prog: stdout is closed"),
        ("<&-", 0, ""),
        ("| true; exit ${PIPESTATUS[0]}", 0, ""),
    ],
)
def test_streams_that_are_gone(redirect: str, code: int, message: str) -> None:
    found = outcome("print('x' * 100_000)", redirect)
    assert found[0] == code
    assert found[1].startswith(message)
    assert len(found[1].splitlines()) == bool(message)


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_a_version_that_nobody_can_read(redirect: str) -> None:
    ended = subprocess.run(
        ["bash", "-c", f'"$0" -m lade_edge.engines.inspect_cli --version {redirect}', sys.executable],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert ended.stderr.startswith("lade-inspect: ")


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def body() -> None:
        raise ConfigError("first\nsecond")

    assert run_command("prog", body) == 1
    assert capsys.readouterr().err == "prog: first second\n"


def test_an_interrupt_is_130() -> None:
    def body() -> None:
        raise KeyboardInterrupt

    assert run_command("prog", body) == 130


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command("prog", lambda: 1 / 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [["--nope\nmore"], ["--ab", "x"], ["one", "two"]])
def test_wrong_usage_is_one_line_and_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parser = CommandParser(prog="prog", description="Does things.")
    parser.add_argument("--abc")
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("prog: unrecognized arguments")
    assert line.endswith("prog --help lists the options")
