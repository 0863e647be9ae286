"""Writes docs/cli.md from the parsers of all commands that pyproject.toml names.

    python tools/cli_reference.py            # after a change of options or help texts
    python tools/cli_reference.py --check    # exit 1 if the page isn't what the parsers say

Tables instead of argparse's own help text, whose layout depends on terminal and Python version.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Commands

Written by `tools/cli_reference.py` from the commands' own parsers; the tests fail where the two part.

Every command takes `--help` and `--version`, and ends with 0; 1 after one sentence on stderr that says
what was found, what was expected and what to do; 2 after a wrong command line; 130 after Ctrl-C.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail if it is stale")
    check = parser.parse_args().check
    page = reference()
    if not check:
        PAGE.write_text(page, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page:
        print(f"{PAGE} is stale; run python tools/cli_reference.py", file=sys.stderr)
        return 1
    return 0


def reference() -> str:
    """The whole page."""
    sections = [section(parser_of(target)) for target in project()["scripts"].values()]
    return "\n".join([HEAD, *sections])


def project() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    content = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(content)["project"]
    return found


def parser_of(target: str) -> argparse.ArgumentParser:
    """The parser of a command.

    Args:
        target: Its entry point, ``module:main``; ``build_parser`` stands beside that.
    """
    module = importlib.import_module(target.partition(":")[0])
    parser = module.build_parser()
    assert isinstance(parser, argparse.ArgumentParser)
    return parser


def section(parser: argparse.ArgumentParser) -> str:
    """One command: description, then a table for each of its groups."""
    positionals, options, *groups = parser._action_groups
    plain = [*positionals._group_actions, *options._group_actions]
    lines = [f"## {parser.prog}", "", parser.description or "", "", *table(parser, plain)]
    for group in groups:
        title = f"**{(group.title or '')}**"
        lines += [f"{title}: {group.description}" if group.description else title, ""]
        lines += table(parser, group._group_actions)
    return "\n".join(lines)


def table(parser: argparse.ArgumentParser, actions: Sequence[argparse.Action]) -> list[str]:
    """What every command takes is said once, at the top of the page."""
    rows = [row(parser, action) for action in actions if action.dest not in ("help", "version")]
    return ["| | |", "|---|---|", *rows, ""]


def row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """One line of a table: what to type, and the help text."""
    value = ""
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    elif isinstance(action.metavar, str):
        value = action.metavar
    elif action.nargs != 0:
        value = action.dest.upper()
    written = " ".join(filter(None, [", ".join(action.option_strings), value]))
    text = argparse.HelpFormatter(parser.prog)._expand_help(action)
    if action.required and action.option_strings:
        text += " (required)"
    return f"| `{written}` | {text} |"


if __name__ == "__main__":
    sys.exit(main())
