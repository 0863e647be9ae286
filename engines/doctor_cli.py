"""``lade-doctor``: one table of what this machine can run and why not."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.doctor import BAD, Finding, examine, this_machine
from lade_edge.engines.errors import EngineError

PROGRAM = "lade-doctor"


def build_parser() -> argparse.ArgumentParser:
    """The command line of ``lade-doctor``."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Show what this machine can run, what it can't and why. Exits 1 if something is "
        "there that has to be mended.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lade-doctor``; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> None:
    findings = examine(this_machine())
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(f) for f in findings], indent=2) + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in table(findings)))
    bad = [finding for finding in findings if finding.state == BAD]
    if bad:
        raise EngineError(f"{bad[0].name.strip()}: {bad[0].detail}")


def table(findings: Sequence[Finding]) -> list[str]:
    """One line per finding."""
    width = max(len(finding.name) for finding in findings)
    return [f"{f.state:2}  {f.name:{width}}  {f.detail}" for f in findings]


if __name__ == "__main__":
    raise SystemExit(main())
