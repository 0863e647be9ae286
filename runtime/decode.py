"""The decode loop. Everything it calls is explained where it lives."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from lade_edge.runtime.drafting.drafter import StepOutcome
from lade_edge.runtime.generation import Event
from lade_edge.runtime.verify import walk

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine
    from lade_edge.runtime.commit import Committer
    from lade_edge.runtime.config import FinishReason
    from lade_edge.runtime.drafting.drafter import Drafter
    from lade_edge.runtime.kept_prefix import Lease
    from lade_edge.runtime.layout import StepLayout
    from lade_edge.runtime.logprobs import LogprobReader
    from lade_edge.runtime.sampling import Sampler
    from lade_edge.runtime.statistics import Meter


def decode(
    engine: Engine,
    prompt: Sequence[int],
    *,
    drafter: Drafter,
    layout: StepLayout,
    committer: Committer,
    meter: Meter,
    lease: Lease,
    sampler: Sampler | None = None,
    logprobs: LogprobReader | None = None,
) -> Generator[Event, None, FinishReason]:
    """Generate, several tokens a step where the drafts are right.

    Invariant between steps: the cache holds all of ``ids`` but the last, the root of the next tree.

    Args:
        engine: The engine.
        prompt: At least one token id.
        drafter: Fresh drafter.
        layout: Layout of the drafter's shape.
        committer: Fresh committer; decides where the output ends.
        meter: Fresh meter.
        lease: Of the engine's cache; says what it holds at first, and what is left at the end or on
            `close`.
        sampler: Fresh sampler over this engine's logits; None takes the largest logit.
        logprobs: Reads the log probabilities that events carry; None leaves them out.

    Yields:
        One event per step, the prefill included.

    Returns:
        Why the output ended.

    Source: arXiv 2402.02057, algorithm 2.
    """
    if committer.remaining == 0:
        return "length"
    with lease as reused:
        started = perf_counter()
        result = engine.prefill(np.asarray(prompt[reused:], dtype=np.int64))
        engine_s = engine.run_s
        first = sampler.choose(0) if sampler else int(result.top_ids[0, 0])
        tokens, text, reason = committer.commit([first])
        ids = lease.ids = [*prompt, *tokens]
        meter.prefilled(reused=reused, engine_s=engine_s, total_s=perf_counter() - started)
        yield Event(text, tuple(tokens), logprobs.read(tokens, ()) if logprobs else ())

        if reason is None:
            started = perf_counter()
            drafter.start(ids)
            meter.overhead(perf_counter() - started)
        while reason is None:
            started = perf_counter()
            tree = drafter.draft(ids[-1], committer.remaining - 1)
            step = layout.arrange(tree, engine.length, drafter.window_rows)
            result = engine.step(*step)
            engine_s = engine.run_s

            best: list[int] = result.top_ids[:, 0].tolist()
            chunk, path = walk(
                tree.children,
                sampler.choose if sampler else best.__getitem__,
                eos=committer.eos,
                budget=committer.remaining,
            )
            tokens, text, reason = committer.commit(chunk)
            ids += tokens
            del path[len(tokens) :]
            newest = layout.newest_row(best, len(tree))
            drafter.learn(StepOutcome(ids, len(tokens), path, result, newest))
            # The last emitted token has no row yet: the root and all but one matched row stay.
            engine.keep([0, *path[: len(tokens) - 1]])
            meter.step(
                tree,
                path,
                tokens=len(tokens),
                width=len(step.tokens),
                engine_s=engine_s,
                text_s=committer.text_s,
                total_s=perf_counter() - started,
            )
            yield Event(text, tuple(tokens), logprobs.read(tokens, path) if logprobs else ())
        return reason
