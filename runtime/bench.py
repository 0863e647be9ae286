"""Plain and automatic decoding side by side on the same prompts.

A machine's speed drifts, so the two run in turn, prompt by prompt, for several rounds, and what counts
is the median over rounds. A category's speed is all its tokens after each first one over all their time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from lade_edge.engines.errors import ConfigError

if TYPE_CHECKING:
    from lade_edge.runtime.config import Mode
    from lade_edge.runtime.generation import Generation
    from lade_edge.runtime.model import Model

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One prompt of a bench file.

    Attributes:
        id: Its name.
        category: Prompts of one category are summed up together.
        text: The prompt; of a conversation the first turn.
        raw: Whether it is completed as it is, without the chat template.
    """

    id: str
    category: str
    text: str
    raw: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryResult:
    """Figures of one category.

    Attributes:
        category: Its name.
        prompts: Number of prompts.
        plain_tokens_per_second: Median over rounds.
        auto_tokens_per_second: Median over rounds.
        ratio: Median over rounds of the two speeds of a round.
        tokens_per_step: Of automatic decoding.
        ids_equal: Whether all prompts gave the ids of plain decoding in every round.
    """

    category: str
    prompts: int
    plain_tokens_per_second: float
    auto_tokens_per_second: float
    ratio: float
    tokens_per_step: float
    ids_equal: bool


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read a JSONL file whose rows have ``id``, ``category`` and ``turns`` (chat) or ``prompt`` (raw).

    Raises:
        ConfigError: If the file can't be read or a row isn't of this form.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read as UTF-8 text: {error}") from error
    prompts = [_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"{path} holds no prompts; expected one JSON object per line")
    return prompts


def _prompt(path: Path, number: int, line: str) -> BenchPrompt:
    try:
        row = json.loads(line)
        raw = "prompt" in row
        text = row["prompt"] if raw else row["turns"][0]
        if not raw and not isinstance(row["turns"], list):
            text = None  # a text where a list of texts belongs
        names = str(row["id"]), str(row["category"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"{path}, line {number} is no prompt; expected a JSON object with all of id, category "
            "and either turns (a list of texts) or prompt (a text)"
        )
    return BenchPrompt(id=names[0], category=names[1], text=text, raw=raw)


def run_bench(
    model: Model,
    prompts: Sequence[BenchPrompt],
    *,
    max_new_tokens: int,
    rounds: int,
    ignore_eos: bool,
    progress: Progress = lambda done, total: None,
    **auto_options: Any,
) -> dict[str, Any]:
    """Run all prompts, plain and automatic in turn.

    Args:
        model: Loaded model.
        prompts: What to run.
        max_new_tokens: Tokens per prompt at most.
        rounds: How often to run everything.
        ignore_eos: Go on after an end token.
        progress: Told finished and total prompts.
        **auto_options: Fields of `GenerationConfig` for automatic decoding.

    Returns:
        ``geomean_ratio``, ``categories`` (as `CategoryResult`), and the settings.
    """
    _check_fit(model, prompts, max_new_tokens)
    model.profile()  # measured before, not inside the first answer
    model.generate(prompts[0].text, raw=prompts[0].raw, max_new_tokens=8, mode="plain")
    measured: list[dict[str, list[tuple[Generation, Generation]]]] = []
    for round_number in range(rounds):
        by_category: dict[str, list[tuple[Generation, Generation]]] = {}
        for number, prompt in enumerate(prompts):
            pair: dict[Mode, Generation] = {}
            modes: tuple[Mode, Mode] = ("plain", "auto")
            for mode in modes if (round_number + number) % 2 else modes[::-1]:
                pair[mode] = model.generate(
                    prompt.text,
                    raw=prompt.raw,
                    mode=mode,
                    max_new_tokens=max_new_tokens,
                    ignore_eos=ignore_eos,
                    **(auto_options if mode == "auto" else {}),
                )
            by_category.setdefault(prompt.category, []).append((pair["plain"], pair["auto"]))
            progress(round_number * len(prompts) + number + 1, rounds * len(prompts))
        measured.append(by_category)
    categories = [
        _summary(name, [by_category[name] for by_category in measured])
        for name, pairs in measured[0].items()
        if any(plain.stats.steps for plain, _ in pairs)
    ]
    if not categories:
        raise ConfigError("no prompt gave more than one token, so there is no speed to compare")
    return {
        "engine": model.engine.spec.name,
        "prompts": len(prompts),
        "max_new_tokens": max_new_tokens,
        "rounds": rounds,
        "geomean_ratio": geometric_mean(category.ratio for category in categories),
        "geomean_tokens_per_step": geometric_mean(c.tokens_per_step for c in categories),
        "categories": categories,
    }


def _check_fit(model: Model, prompts: Sequence[BenchPrompt], max_new_tokens: int) -> None:
    """Find a prompt that can't be run before the first one is."""
    for prompt in prompts:
        try:
            length = len(model.prompts.encode(prompt.text, raw=prompt.raw))
        except ConfigError as error:
            raise ConfigError(f"prompt {prompt.id} can't be used: {error}") from error
        if length >= model.engine.spec.capacity:
            raise ConfigError(
                f"prompt {prompt.id} has {length} tokens and {max_new_tokens} new ones are asked "
                f"for, but the KV cache holds {model.engine.spec.capacity} in all; leave it out or "
                "export with a larger capacity (lade-export --capacity)"
            )


def _summary(
    name: str, rounds: Sequence[Sequence[tuple[Generation, Generation]]]
) -> CategoryResult:
    plain = [_speed(pair[0] for pair in pairs) for pairs in rounds]
    auto = [_speed(pair[1] for pair in pairs) for pairs in rounds]
    stats = [pair[1].stats for pairs in rounds for pair in pairs]
    steps = sum(figures.steps for figures in stats)
    return CategoryResult(
        category=name,
        prompts=len(rounds[0]),
        plain_tokens_per_second=median(plain),
        auto_tokens_per_second=median(auto),
        ratio=median(a / p for a, p in zip(auto, plain, strict=True)),
        tokens_per_step=sum(figures.tokens - 1 for figures in stats) / max(steps, 1),
        ids_equal=all(p.output_ids == a.output_ids for pairs in rounds for p, a in pairs),
    )


def _speed(generations: Iterable[Generation]) -> float:
    """Tokens a second after the first token, at least a trifle so that ratios exist."""
    tokens = seconds = 0.0
    for generation in generations:
        stats = generation.stats
        if stats.steps:
            tokens += stats.tokens - 1
            seconds += stats.engine_s + stats.host_s + stats.text_s
    return tokens / seconds if seconds else 1e-9
