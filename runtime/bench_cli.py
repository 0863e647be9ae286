"""``lade-bench``: what automatic decoding gains over plain decoding on a file of prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.config import COSTS

PROGRAM = "lade-bench"


def build_parser() -> argparse.ArgumentParser:
    """The command line as an argparse parser."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Time plain and automatic decoding in turn on the same prompts.",
    )
    parser.add_argument("--engine", required=True, metavar="PATH", help="bundle or graph in one")
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE",
        help="JSONL; a row has id, category and turns (chat, the first is used) or prompt (raw)",
    )  # fmt: skip
    parser.add_argument(
        "-n", "--max-new-tokens", type=int, default=128, metavar="COUNT",
        help="tokens per prompt at most (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="medians are taken over these; Ctrl-C keeps the complete ones (default: %(default)s)",
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after an end token")
    parser.add_argument("--threads", type=int, metavar="T", help="CPU threads (default: engine's)")
    parser.add_argument("--max-width", type=int, metavar="T", help="widest step (default: 32)")
    parser.add_argument(
        "--cost", choices=COSTS, default="measured",
        help="what a slot costs: as measured, or nothing (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", choices=("md", "json"), default="md", help="(default: %(default)s)"
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('lade-edge')}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lade-bench``; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command(PROGRAM, lambda: print(_report(arguments)))


def _report(arguments: argparse.Namespace) -> str:
    result = _run(arguments)
    return _as_json(result) if arguments.output == "json" else _as_markdown(result)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    for name in ("rounds", "max_new_tokens"):
        if getattr(arguments, name) < 1:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {getattr(arguments, name)}; expected 1 or more")
    from rich.console import Console

    from lade_edge.runtime.bench import read_prompts, run_bench
    from lade_edge.runtime.model import DEFAULT_MAX_WIDTH, load

    prompts = read_prompts(arguments.prompts)
    widest = max(arguments.max_width or 1, DEFAULT_MAX_WIDTH)
    model = load(arguments.engine, threads=arguments.threads, max_width=widest)
    console = Console(stderr=True)
    with console.status("measuring this device") as status:
        return run_bench(
            model,
            prompts,
            max_new_tokens=arguments.max_new_tokens,
            rounds=arguments.rounds,
            ignore_eos=arguments.ignore_eos,
            progress=lambda done, total: status.update(f"{done} of {total} prompts"),
            max_width=arguments.max_width,
            cost=arguments.cost,
        )


def _as_json(result: dict[str, Any]) -> str:
    return json.dumps(result | {"categories": [asdict(row) for row in result["categories"]]})


def _as_markdown(result: dict[str, Any]) -> str:
    title = (
        f"{result['engine']}, {result['prompts']} prompts, up to {result['max_new_tokens']} new "
        f"tokens, {result['rounds']} rounds"
    )
    lines = [
        title,
        "",
        "| category | prompts | plain tok/s | auto tok/s | ratio | tokens a step | ids |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.category} | {row.prompts} | {row.plain_tokens_per_second:.1f} | "
        f"{row.auto_tokens_per_second:.1f} | {row.ratio:.2f} | {row.tokens_per_step:.2f} | "
        f"{'equal' if row.ids_equal else 'DIFFERENT'} |"
        for row in result["categories"]
    ]
    lines.append(
        f"| geometric mean | | | | {result['geomean_ratio']:.3f} | "
        f"{result['geomean_tokens_per_step']:.2f} | |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
