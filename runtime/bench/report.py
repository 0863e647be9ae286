"""What a bench found, as a table for people, as CSV or as JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

Result = dict[str, Any]
_COLUMNS = (
    "category", "prompts", "plain tok/s", "auto tok/s", "ratio", "of rounds", "tokens a step",
    "prefill tok/s", "first token", "host", "ids",
)  # fmt: skip


def as_json(result: Result) -> str:
    """Everything, in one object."""
    return json.dumps(result | {"categories": [asdict(row) for row in result["categories"]]})


def as_csv(result: Result) -> str:
    """One line per category, all its figures."""
    rows = [asdict(row) for row in result["categories"]]
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().removesuffix("\n")


def as_markdown(result: Result) -> str:
    """The limits of the machine first, then a table, then step times if they were asked for."""
    title = (
        f"{result['engine']}, {result['prompts']} prompts, up to {result['max_new_tokens']} new "
        f"tokens, {result['rounds']} rounds"
    )
    lines = [title, _card(result), "", f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [
        f"| {row.category} | {row.prompts} | {row.plain_tokens_per_second:.1f} | "
        f"{row.auto_tokens_per_second:.1f} | {row.ratio:.2f} | "
        f"{row.ratio_low:.2f} to {row.ratio_high:.2f} | {row.tokens_per_step:.2f} | "
        f"{row.prefill_tokens_per_second:.0f} | {1e3 * row.time_to_first_token_s:.0f} ms | "
        f"{row.host_share:.1%} | {'equal' if row.ids_equal else 'DIFFERENT'} |"
        for row in result["categories"]
    ]
    lines.append(
        f"| geometric mean | | | | {result['geomean_ratio']:.3f} | | "
        f"{result['geomean_tokens_per_step']:.2f} | | | | |"
    )
    if "curve_ms" in result:
        lines += ["", "| tokens a step | " + " | ".join(map(str, result["curve_ms"])) + " |"]
        lines.append("|---" * (1 + len(result["curve_ms"])) + "|")
        times = " | ".join(f"{ms:.2f}" for ms in result["curve_ms"].values())
        lines.append(f"| milliseconds | {times} |")
    return "\n".join(lines)


def _card(result: Result) -> str:
    card = result.get("card")
    if card is None:
        return _memory(result)
    text = f"memory is read at {card['bandwidth_gb_s']:.1f} GB/s by {card['threads']} threads"
    if card["weight_mb"] is not None:
        text = (
            f"{card['weight_mb']:.0f} MB of weights a step, {text}: plain decoding from memory "
            f"reaches {card['plain_limit_tokens_per_second']:.1f} tok/s at most"
        )
    return "; ".join(filter(None, [text, _memory(result)]))


def _memory(result: Result) -> str:
    peak = result["peak_memory_mb"]
    return "" if peak is None else f"peak memory {peak:.0f} MB"


FORMS: dict[str, Callable[[Result], str]] = {"md": as_markdown, "csv": as_csv, "json": as_json}
