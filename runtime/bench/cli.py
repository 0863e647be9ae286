"""``lade-bench``: what automatic decoding gains over plain decoding on a file of prompts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.config import COSTS

PROGRAM = "lade-bench"
_CURVE = (1, 2, 4, 8, 12, 16, 24, 32, 64)


def build_parser() -> argparse.ArgumentParser:
    """The command line as an argparse parser."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Time plain and automatic decoding in turn on the same prompts.",
    )
    parser.add_argument(
        "--engine", required=True, metavar="PATH", help="bundle, graph in one, or a plan"
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE",
        help="JSONL; a row has id, category and turns (chat, the first is used) or prompt (raw) "
        "(default: a small set of our own)",
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
        "-o", "--output", choices=("md", "csv", "json"), default="md",
        help="form of the report on stdout (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--curve", action="store_true", help="also time steps of 1 to 64 tokens (curve_ms in JSON)"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="PNG", help="also draw step times, chosen widths and drafts"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``lade-bench``; returns the exit status."""
    arguments = build_parser().parse_args(argv)
    return run_command(PROGRAM, lambda: print(_report(arguments)))


def _report(arguments: argparse.Namespace) -> str:
    from lade_edge.runtime.bench.report import FORMS

    return FORMS[arguments.output](_run(arguments))


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    for name in ("rounds", "max_new_tokens"):
        if getattr(arguments, name) < 1:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {getattr(arguments, name)}; expected 1 or more")
    from rich.console import Console

    from lade_edge.runtime.bench.card import static_card
    from lade_edge.runtime.bench.comparison import run_bench
    from lade_edge.runtime.bench.plot import check_plotting, plot
    from lade_edge.runtime.bench.prompts import OWN_PROMPTS, read_prompts
    from lade_edge.runtime.model import DEFAULT_MAX_WIDTH, load
    from lade_edge.runtime.profile_cache import usable_processors
    from lade_edge.runtime.profile_measurement import measure

    if arguments.plot is not None:
        check_plotting(arguments.plot)
    prompts = read_prompts(arguments.prompts or OWN_PROMPTS)
    widest = max(arguments.max_width or 1, DEFAULT_MAX_WIDTH)
    model = load(arguments.engine, threads=arguments.threads, max_width=widest)
    console = Console(stderr=True)
    with console.status("measuring this device") as status:
        result = run_bench(
            model,
            prompts,
            max_new_tokens=arguments.max_new_tokens,
            rounds=arguments.rounds,
            ignore_eos=arguments.ignore_eos,
            progress=lambda done, total: status.update(f"{done} of {total} prompts"),
            max_width=arguments.max_width,
            cost=arguments.cost,
        )
        # last, since its blocks would count as the model's memory
        spec = model.engine.spec
        if spec.device == "cpu":  # a device reads its weights from a memory of its own
            result["card"] = static_card(model, arguments.threads or usable_processors())
        if arguments.curve or arguments.plot is not None:
            status.update("measuring step times")
            widths = [width for width in _CURVE if width <= spec.max_width]
            result["curve_ms"] = measure(model.engine, widths).at(min(256, spec.capacity - 1))
    if arguments.plot is not None:
        plot(result, arguments.plot)
    return result


if __name__ == "__main__":
    sys.exit(main())
