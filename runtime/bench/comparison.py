"""Plain and automatic decoding side by side on the same prompts.

A machine's speed drifts, so the two run in turn, prompt by prompt, for several rounds, and what counts
is the median over rounds. A category's speed is all its tokens after each first one over all their time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any, TypeVar

from lade_edge.engines.errors import ConfigError
from lade_edge.engines.peak_memory import peak_memory_mb

if TYPE_CHECKING:
    from lade_edge.runtime.bench.prompts import BenchPrompt
    from lade_edge.runtime.config import Mode
    from lade_edge.runtime.generation import Generation
    from lade_edge.runtime.model import Model

Progress = Callable[[int, int], None]
_Key = TypeVar("_Key", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryResult:
    """Figures of one category.

    Attributes:
        category: Its name.
        prompts: Number of prompts.
        plain_tokens_per_second: Median over rounds.
        auto_tokens_per_second: Median over rounds.
        ratio: Median over rounds of the two speeds of a round.
        ratio_low: Least ratio of a round.
        ratio_high: Largest ratio of a round.
        tokens_per_step: Of automatic decoding.
        prefill_tokens_per_second: Prompt tokens over the engine's time for them, all runs.
        time_to_first_token_s: Median over all runs.
        host_share: Share of automatic decoding's time outside the engine, text included.
        ids_equal: Whether all prompts gave the ids of plain decoding in every round.
    """

    category: str
    prompts: int
    plain_tokens_per_second: float
    auto_tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float
    tokens_per_step: float
    prefill_tokens_per_second: float
    time_to_first_token_s: float
    host_share: float
    ids_equal: bool


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

    An interruption ends it; the rounds that were complete count.

    Returns:
        The settings, ``geomean_ratio``, ``geomean_tokens_per_step``, ``categories`` (as
        `CategoryResult`), ``peak_memory_mb``, and of automatic decoding ``auto_widths`` (steps by
        width), ``proposed`` and ``accepted`` (draft tokens by source).
    """
    _check_fit(model, prompts, max_new_tokens)
    model.profile()  # measured before, not inside the first answer
    model.generate(prompts[0].text, raw=prompts[0].raw, max_new_tokens=8, mode="plain")
    measured: list[dict[str, list[tuple[Generation, Generation]]]] = []
    try:
        for round_number in range(rounds):

            def tell(finished: int, before: int = round_number * len(prompts)) -> None:
                progress(before + finished, rounds * len(prompts))

            measured.append(
                _round(
                    model,
                    prompts,
                    auto_first=round_number % 2 == 0,
                    max_new_tokens=max_new_tokens,
                    ignore_eos=ignore_eos,
                    progress=tell,
                    auto_options=auto_options,
                )
            )
    except KeyboardInterrupt:
        if not measured:
            raise
    categories = [
        _summary(name, [by_category[name] for by_category in measured])
        for name, pairs in measured[0].items()
        if any(plain.stats.steps for plain, _ in pairs)
    ]
    auto = [pair[1].stats for names in measured for pairs in names.values() for pair in pairs]
    if not categories:
        raise ConfigError("no prompt gave more than one token, so there is no speed to compare")
    return {
        "engine": model.engine.spec.name,
        "prompts": len(prompts),
        "max_new_tokens": max_new_tokens,
        "rounds": len(measured),
        "geomean_ratio": geometric_mean(category.ratio for category in categories),
        "geomean_tokens_per_step": geometric_mean(c.tokens_per_step for c in categories),
        "peak_memory_mb": peak_memory_mb(),
        "auto_widths": _added(figures.widths for figures in auto),
        "proposed": _added(figures.proposed for figures in auto),
        "accepted": _added(figures.accepted for figures in auto),
        "categories": categories,
    }


def _round(
    model: Model,
    prompts: Sequence[BenchPrompt],
    *,
    auto_first: bool,
    max_new_tokens: int,
    ignore_eos: bool,
    progress: Callable[[int], None],
    auto_options: dict[str, Any],
) -> dict[str, list[tuple[Generation, Generation]]]:
    """Run all prompts once; who comes first changes from prompt to prompt."""
    by_category: dict[str, list[tuple[Generation, Generation]]] = {}
    for number, prompt in enumerate(prompts):
        pair: dict[Mode, Generation] = {}
        modes: tuple[Mode, Mode] = ("plain", "auto")
        for mode in modes[::-1] if (number % 2 == 0) == auto_first else modes:
            pair[mode] = model.generate(
                prompt.text,
                raw=prompt.raw,
                mode=mode,
                max_new_tokens=max_new_tokens,
                ignore_eos=ignore_eos,
                **(auto_options if mode == "auto" else {}),
            )
        by_category.setdefault(prompt.category, []).append((pair["plain"], pair["auto"]))
        progress(number + 1)
    return by_category


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
    ratios = [fast / slow for fast, slow in zip(auto, plain, strict=True)]
    stats = [pair[1].stats for pairs in rounds for pair in pairs]
    every = stats + [pair[0].stats for pairs in rounds for pair in pairs]
    steps = sum(figures.steps for figures in stats)
    engine_s = sum(figures.engine_s for figures in stats)
    host_s = sum(figures.host_s + figures.text_s for figures in stats)
    return CategoryResult(
        category=name,
        prompts=len(rounds[0]),
        plain_tokens_per_second=median(plain),
        auto_tokens_per_second=median(auto),
        ratio=median(ratios),
        ratio_low=min(ratios),
        ratio_high=max(ratios),
        tokens_per_step=sum(figures.tokens - 1 for figures in stats) / max(steps, 1),
        prefill_tokens_per_second=sum(figures.prompt_tokens for figures in every)
        / max(sum(figures.prefill_s for figures in every), 1e-9),
        time_to_first_token_s=median(figures.time_to_first_token_s for figures in every),
        host_share=host_s / max(engine_s + host_s, 1e-9),
        ids_equal=all(p.output_ids == a.output_ids for pairs in rounds for p, a in pairs),
    )


def _added(counts: Iterable[dict[_Key, int]]) -> dict[_Key, int]:
    total: Counter[_Key] = Counter()
    for more in counts:
        total.update(more)
    return {key: total[key] for key in sorted(total)}


def _speed(generations: Iterable[Generation]) -> float:
    """Tokens a second after the first token, at least a trifle so that ratios exist."""
    tokens = seconds = 0.0
    for generation in generations:
        stats = generation.stats
        if stats.steps:
            tokens += stats.tokens - 1
            seconds += stats.engine_s + stats.host_s + stats.text_s
    return tokens / seconds if seconds else 1e-9
