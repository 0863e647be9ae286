"""How every command of the project is called and ends: one sentence, never a traceback."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from lade_edge.engines.errors import LadeError


class CommandParser(argparse.ArgumentParser):
    """A parser with ``--version`` that says in one line what is wrong with a command line, and exits 2.

    Args:
        prog: Name of the command.
        description: What it does, for ``--help``.
    """

    def __init__(self, *, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False)
        self.add_argument("--version", action=_Version, help="show the version and exit")

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage and exit."""
        sentence = " ".join(message.split())
        self.exit(2, f"{self.prog}: {sentence}; {self.prog} --help lists the options\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help, default=argparse.SUPPRESS)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Print the version and exit."""
        from importlib.metadata import version

        line = f"{parser.prog} {version('lade-edge')}\n"
        parser.exit(run_command(parser.prog, lambda: _write(line)))


def run_command(program: str, body: Callable[[], None]) -> int:
    """Run a command's body and turn what a user can mend into one line on stderr.

    Args:
        program: Name of the command, put in front of the line.
        body: Writes its data to stdout.

    Returns:
        0; 1 after an error the user can mend or an output that can't be written; 130 after Ctrl-C.
        An output whose reader has had enough is no error.
    """
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    if sys.stdout is None:
        _complain(program, "stdout is closed; expected a place to write the result to")
        return 1
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that can't show a character must not end the answer.
        sys.stdout.reconfigure(errors="replace")
    try:
        body()
        sys.stdout.flush()
    except LadeError as error:
        _complain(program, str(error))
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        if error.filename is not None:
            raise
        _drop_output()
        _complain(
            program,
            f"the output can't be written ({error.strerror}); free the disk or name another place",
        )
        return 1
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)


def _complain(program: str, sentence: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{program}: {' '.join(sentence.split())}\n")


def _drop_output() -> None:
    """What is still buffered must not fail at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
