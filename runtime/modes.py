"""What a mode means: which drafter and which layout a generation runs with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lade_edge.engines.errors import ConfigError, EngineError
from lade_edge.runtime.config import DEVICE_SHAPES, PLAIN, Shape
from lade_edge.runtime.drafting.drafter import Drafter, LookaheadDrafter
from lade_edge.runtime.drafting.step_cost import StepCost, free
from lade_edge.runtime.drafting.successors import SuccessorSource
from lade_edge.runtime.drafting.suffix import SuffixSource
from lade_edge.runtime.drafting.tree_drafter import TreeDrafter
from lade_edge.runtime.drafting.window_source import WindowSource
from lade_edge.runtime.layout import StepLayout

if TYPE_CHECKING:
    from lade_edge.engines.protocol import EngineSpec
    from lade_edge.runtime.config import GenerationConfig
    from lade_edge.runtime.device_profile import DeviceProfile
    from lade_edge.runtime.drafting.sources import DraftSource

WIDEST_DRAFT = 32  # tokens; wider steps pay on no device measured so far
_EXACT_MIN_WIDTH = 2  # a step of one token takes other kernels, which round otherwise


def prepare(
    settings: GenerationConfig,
    spec: EngineSpec,
    profile: Callable[[], DeviceProfile],
    *,
    length: int,
    more_sources: Sequence[DraftSource] = (),
    eos: frozenset[int],
    stop_tokens: frozenset[int],
) -> tuple[Drafter, StepLayout]:
    """Make the drafter and the layout of one generation.

    Args:
        settings: The request.
        spec: The engine's limits.
        profile: Gives the engine's step times; called only by modes that need them.
        length: Tokens of prompt and output, about half way through.
        more_sources: Draft sources besides the request's own.
        eos: The model's end tokens.
        stop_tokens: End tokens that end this output.

    Raises:
        ConfigError: If a width exceeds the engine's.
        EngineError: If ``exact`` can't be had on this engine.
    """
    max_width = _max_width(settings, spec)
    if settings.min_width > spec.max_width:
        raise ConfigError(
            f"min_width is {settings.min_width}, the engine was opened for steps of at most "
            f"{spec.max_width} tokens; lower it or open the engine for more"
        )
    if settings.decoding in ("plain", "lookahead") or not settings.max_new_tokens:
        shape = settings.shape(spec)
        drafter = LookaheadDrafter(shape, seed=settings.seed or 0, eos=eos, stop_tokens=stop_tokens)
        return drafter, StepLayout(shape, spec, min_width=settings.min_width)
    min_width = max(settings.min_width, spec.plain_width)
    exact = settings.decoding == "exact"
    if exact:
        min_width = max(min_width, _EXACT_MIN_WIDTH)
        tested = profile().widths
        if settings.min_width == min_width:
            _check_tested(tested, min_width)
        max_width = max(width for width in tested if width <= max(max_width, tested[0]))
        _check_invariance(profile(), spec, min_width)
    if min_width > max_width:
        raise ConfigError(
            f"steps of at least {min_width} and at most {max_width} tokens are asked for; raise "
            "max_width (--max-width) or lower min_width (--min-width)"
        )
    if settings.cost == "flat":
        cost = free(max_width)
    else:
        times = profile().at(length)
        if exact:  # nothing is promised of a width that wasn't tested: the next one is run
            times = {width: times[_next(tested, width)] for width in range(1, max_width + 1)}
        cost = StepCost(times, max_width=max_width, min_width=min_width)
    shape = PLAIN if exact else _window_shape(spec, max_width)
    window = WindowSource(shape, seed=settings.seed or 0, eos=eos) if shape.window else None
    tree_drafter = TreeDrafter(
        (SuffixSource(), SuccessorSource(), *more_sources),
        cost,
        stop_tokens=stop_tokens,
        chain_only=exact,
        window=window,
    )
    widths = [_next(tested, width) for width in cost.widths] if exact else cost.widths
    layout = StepLayout(shape, spec, min_width=min_width, widths=widths)
    return tree_drafter, layout


def _next(tested: Sequence[int], width: int) -> int:
    """The least tested width that is enough."""
    return next(enough for enough in tested if enough >= width)


def _window_shape(spec: EngineSpec, max_width: int) -> Shape:
    """The device's window if it leaves half of the widest step to drafts, else none."""
    device = DEVICE_SHAPES.get(spec.device, DEVICE_SHAPES["cpu"])
    shape = Shape(window=device.window, ngram=device.ngram, guesses=0)
    return shape if 2 * shape.window_slots <= max_width and shape.ngram > 2 else PLAIN


def _max_width(settings: GenerationConfig, spec: EngineSpec) -> int:
    if settings.max_width is None:
        return min(WIDEST_DRAFT, spec.max_width)
    if settings.max_width > spec.max_width:
        raise ConfigError(
            f"max_width is {settings.max_width}, the engine was opened for steps of at most "
            f"{spec.max_width} tokens; lower it or open the engine for more"
        )
    return settings.max_width


def _check_tested(tested: Sequence[int], min_width: int) -> None:
    """Plain decoding at this width is what exact output is the same as, so it must be a tested one."""
    if min_width not in tested:
        raise ConfigError(
            f"mode exact is tested for steps of {', '.join(map(str, tested))} tokens, min_width is "
            f"{min_width}; choose one of them (--min-width)"
        )


def _check_invariance(profile: DeviceProfile, spec: EngineSpec, min_width: int) -> None:
    """Exact output needs rows that are the same, bit for bit, at every width a step may have."""
    if profile.invariant_from is None:
        raise EngineError(
            f"{spec.name} gives other bits for the same row at every step width here, so exact "
            "output can't be promised; use --mode auto or --mode plain"
        )
    if profile.invariant_from > min_width:
        raise EngineError(
            f"{spec.name} gives the same bits for a row only in steps of {profile.invariant_from} "
            f"tokens and more here, steps of {min_width} are asked for; add --min-width "
            f"{profile.invariant_from}"
        )
