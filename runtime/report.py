"""The table of figures that ``--stats`` prints."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lade_edge.runtime.generation import Generation


def print_statistics(generation: Generation, file: TextIO | None = None) -> None:
    """Print what a generation cost.

    Args:
        generation: A finished generation.
        file: Where to, stderr if None.
    """
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in _rows(generation):
        table.add_row(name, value)
    Console(file=file or sys.stderr, highlight=False).print(table)


def _rows(generation: Generation) -> list[tuple[str, str]]:
    stats, shape = generation.stats, generation.shape
    mode: str = generation.mode
    if mode == "lookahead":
        mode += f", window {shape.window}, ngram {shape.ngram}, guesses {shape.guesses}"
    rows = [
        ("mode", mode),
        ("seed", str(generation.seed)),
        ("prompt", f"{stats.prompt_tokens} tokens, {stats.prefill_tokens_per_second:.1f} a second"),
        *([("reused", f"{stats.reused_tokens} tokens")] if stats.reused_tokens else []),
        ("first token", f"{stats.time_to_first_token_s * 1e3:.1f} ms"),
        ("output", f"{stats.tokens} tokens in {stats.steps} steps after the first token"),
        ("tokens a step", f"{stats.tokens_per_step:.2f}"),
        ("tokens a second", f"{stats.tokens_per_second:.1f}"),
        ("ended by", generation.finish_reason),
    ]
    if stats.estimated_gain is not None:
        rows.insert(-1, ("over plain", f"{stats.estimated_gain:.2f} times as fast, estimated"))
    if stats.steps:
        engine_ms = stats.engine_s / stats.steps * 1e3
        host_ms = stats.host_s / stats.steps * 1e3
        text_ms = stats.text_s / stats.steps * 1e3
        times = f"engine {engine_ms:.2f} ms, host {host_ms:.3f} ms, text {text_ms:.3f} ms"
        rows.append(("a step", times))
        widths = ", ".join(f"{width}: {count}" for width, count in stats.widths.items())
        rows.append(("steps by width", widths))
    for origin, proposed in sorted(stats.proposed.items()):
        accepted = stats.accepted.get(origin, 0)
        rows.append((f"{origin} drafts", f"{accepted} of {proposed} accepted"))
    return rows
