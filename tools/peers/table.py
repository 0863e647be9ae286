"""A result as the page that is committed: rendered from figures, never typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peers.catalogue import OURS
from peers.summary import NEAR_LOSSLESS, Comparison, Key, PeerQuality, Speeds, fastest

_METHOD = """\
All engines get the same prompt token ids, decode greedily to an end token or the limit, and use the
same number of threads. They run in turn, prompt by prompt, one at work at a time, each in a process of
its own, every peer with a virtual environment of its own; a first generation of every mode is dropped. A category's speed is all
its tokens after each first one over all their time, as the reader of the stream sees it; the mean over
categories is geometric. Quality is measured through each engine's own logits, on a text that nothing
was fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that a page says.

    Attributes:
        command: The command line.
        model: Name of the model's file.
        machine: From `describe_machine`.
        threads: Of every engine.
        prompts: How many.
        max_new_tokens: Limit per prompt.
        speeds: All speeds.
        qualities: By engine and precision.
        reference: Engine that quality is relative to; empty if none in fp32 was measured.
        versions: Of packages, by engine and precision.
        idle_share: Of a core, by engine and precision, while another one worked.
        missing: Why an engine, or an engine's mode, isn't there.
    """

    command: str
    model: str
    machine: Mapping[str, Any]
    threads: int
    prompts: int
    max_new_tokens: int
    speeds: Speeds
    qualities: Mapping[str, PeerQuality]
    reference: str
    versions: Mapping[str, Mapping[str, str]]
    idle_share: Mapping[str, float]
    missing: Mapping[str, str]


def claims(result: Result) -> list[tuple[str, Key, Key]]:
    """What is set against what, each with its reason, as far as it was measured."""
    peers = [name for name, _ in result.speeds.modes if not name.startswith(OURS)]
    best = fastest(result.speeds, result.qualities, peers)
    int8, int4 = f"{OURS} int8", f"{OURS} int4"
    wanted = [
        ("plain against plain", (int8, "plain"), ("onnxruntime-genai int4", "plain")),
        ("the 4-bit peer that speculates", (int4, "auto"), ("openvino int4", "lookup")),
    ]
    if best is not None:
        reason = f"the fastest peer within {NEAR_LOSSLESS} times the perplexity"
        wanted.insert(1, (reason, (int8, "auto"), best))
    known = set(result.speeds.modes)
    return [claim for claim in wanted if {claim[1], claim[2]} <= known]


def as_markdown(result: Result) -> str:
    """The page."""
    machine, speeds = result.machine, result.speeds
    rounds = f"{len(speeds.rounds)} round{'s' if len(speeds.rounds) > 1 else ''}"
    what = (
        f"{result.model}, {result.prompts} prompts in {len(speeds.categories)} categories, up to "
        f"{result.max_new_tokens} new tokens, {rounds}, {result.threads} threads. {machine['date']}, "
        f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['flags'])}), "
        f"{machine['memory_gb']} GB, {machine['system']}; load average "
        f"{machine['load_average']:.1f} at the start."
    )
    lines = ["# Peers", "", _METHOD, "", "```", result.command, "```", "", what, ""]
    lines += [*_modes(result), "", *_claims(result), "", *_categories(speeds), ""]
    lines += _versions(result)
    if result.missing:
        lines += ["", "Not measured:", ""]
        lines += [f"- {name}: {reason}" for name, reason in result.missing.items()]
    return "\n".join(lines) + "\n"


def _modes(result: Result) -> list[str]:
    """A row per mode, with this project's best modes over it."""
    speeds = result.speeds
    ours = [key for key in speeds.modes if key[0].startswith(OURS) and key[1] == "auto"]
    head = ["engine, weights", "mode", "tok/s", "over its plain", "perplexity ratio"]
    head += ["same best token", "ids as plain", *(f"{name} {mode} over it" for name, mode in ours)]
    rows = [head, ["---"] * len(head)]
    for key in speeds.modes:
        quality, same = result.qualities.get(key[0]), speeds.same_ids(key)
        plain = (key[0], "plain")
        rows.append(
            [
                *key,
                f"{speeds.mean(key):.1f}",
                f"{speeds.compare(key, plain).ratio:.2f}" if plain in speeds.modes else "",
                f"{quality.perplexity_ratio:.3f}" if quality else "",
                f"{quality.top1_agreement:.1%}" if quality else "",
                f"{same[0]} of {same[1]}" if same else "",
                *(f"{speeds.compare(mine, key).ratio:.2f}" for mine in ours),
            ]
        )
    said = (
        f"Quality is relative to {result.reference}."
        if result.reference
        else "No quality was measured."
    )
    return [*(_row(row) for row in rows), "", said]


def _claims(result: Result) -> list[str]:
    return [
        f"- {' '.join(mine)} over {' '.join(other)} ({reason}): "
        f"{_said(result.speeds.compare(mine, other))}{_qualities(result, mine, other)}"
        for reason, mine, other in claims(result)
    ]


def _said(comparison: Comparison) -> str:
    behind = ", ".join(f"{name} {ratio:.2f}" for name, ratio in comparison.not_ahead.items())
    return f"**{comparison.ratio:.2f}**; " + (
        f"not ahead in {behind}" if behind else "ahead in every category"
    )


def _qualities(result: Result, mine: Key, other: Key) -> str:
    if not {mine[0], other[0]} <= set(result.qualities):
        return ""
    ratios = [result.qualities[key[0]].perplexity_ratio for key in (mine, other)]
    return f" (perplexity ratios {ratios[0]:.3f} and {ratios[1]:.3f})"


def _categories(speeds: Speeds) -> list[str]:
    """Tokens a second: a row per mode, a column per category."""
    rows: list[Sequence[str]] = [["tok/s", *speeds.categories]]
    rows.append(["---"] * len(rows[0]))
    for key in speeds.modes:
        cells = (f"{speeds.of(key, category):.0f}" for category in speeds.categories)
        rows.append([" ".join(key), *cells])
    lines = [_row(row) for row in rows]
    if speeds.left_out:
        lines += ["", f"Left out, without tokens to time: {', '.join(speeds.left_out)}."]
    return lines


def _versions(result: Result) -> list[str]:
    merged = {
        f"{package} {number}"
        for found in result.versions.values()
        for package, number in found.items()
    }
    lines = [f"Versions: {', '.join(sorted(merged))}."]
    if result.idle_share:
        busiest = max(result.idle_share, key=lambda name: result.idle_share[name])
        lines.append(
            f"While another engine worked, none took more than {result.idle_share[busiest]:.1%} of a "
            f"core ({busiest})."
        )
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
