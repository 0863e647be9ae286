from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes import EOS, Script, ScriptedEngine, scripted_model
from lade_edge.engines.protocol import Int64Array, StepResult
from lade_edge.runtime.drafting.successors import SuccessorSource
from lade_edge.runtime.drafting.suffix import SuffixSource

CONSTANT = Script(alphabet=(97,), surprise=10**9)


@pytest.mark.parametrize(
    "options", [{}, {"stop": "aa"}, {"mode": "plain"}, {"window": 3, "ngram": 4, "guesses": 3}]
)
@pytest.mark.parametrize("script", [CONSTANT, Script(rare=(EOS,))])
def test_the_cache_holds_all_but_the_last_token_at_every_event(
    script: Script, options: dict[str, Any]
) -> None:
    engine = ScriptedEngine(script)
    length = 4
    for event in scripted_model(engine=engine).stream([97] * 4, max_new_tokens=30, **options):
        length += len(event.ids)
        assert engine.length == length - 1


def test_the_last_place_needs_no_drafts() -> None:
    """One token comes from the prefill; a bonus token always fills the last place."""
    for count, widths in ((9, [4, 4]), (10, [4, 4, 1]), (11, [4, 4, 2])):
        engine = ScriptedEngine(CONSTANT)
        scripted_model(engine=engine).generate(
            [97] * 8, max_new_tokens=count, window=0, ngram=4, guesses=1
        )
        assert engine.widths == widths


def test_an_engine_somebody_used_before_starts_afresh() -> None:
    engine = ScriptedEngine(Script())
    engine.prefill(np.arange(5))
    found = scripted_model(engine=engine).generate("ab", max_new_tokens=20)
    assert found.output_ids == scripted_model(Script()).generate("ab", max_new_tokens=20).output_ids


def test_plain_steps_have_the_engines_plain_width() -> None:
    engine = ScriptedEngine(Script(), plain_width=3)
    scripted_model(engine=engine).generate("ab", max_new_tokens=9, mode="plain")
    assert engine.widths == [3] * 8


def test_steps_without_drafts_are_plain_steps() -> None:
    engine = ScriptedEngine(Script(), plain_width=2)
    scripted_model(engine=engine).generate("ab", max_new_tokens=9, window=0, guesses=0)
    assert engine.widths == [2] * 8


@pytest.mark.parametrize("mode", ["auto", "exact"])
@pytest.mark.parametrize("cost", ["measured", "flat"])
def test_a_step_without_candidates_is_a_plain_step(
    mode: str, cost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in (SuffixSource, SuccessorSource):
        monkeypatch.setattr(source, "propose", lambda self, context: [])
    engine = ScriptedEngine(Script(), max_width=5)  # too narrow for a window
    options: dict[str, Any] = {"mode": mode, "cost": cost, "max_new_tokens": 50}
    found = scripted_model(engine=engine).generate("ab", **options)
    assert engine.widths == [2 if mode == "exact" else 1] * 49
    assert found.stats.proposed == found.stats.accepted == {}
    assert list(found.output_ids) == Script().text(b"[user]ab\n[assistant]", 50)


@pytest.mark.parametrize(
    "options", [{"mode": "plain"}, {"window": 3, "ngram": 4, "guesses": 3}, {"cost": "flat"}]
)
def test_no_token_of_the_past_runs_again(options: dict[str, Any]) -> None:
    """The prompt runs once; a step feeds its root and drafts, whatever the length of the text."""
    prefills: list[int] = []

    class Counting(ScriptedEngine):
        def prefill(self, tokens: Int64Array) -> StepResult:
            prefills.append(len(tokens))
            return super().prefill(tokens)

    engine = Counting(Script())
    stats = scripted_model(engine=engine).generate([97] * 50, max_new_tokens=60, **options).stats
    assert prefills == [50]
    slots = 0 if "window" not in options else 8 * stats.steps  # a window of 3 x 3 less the root
    assert sum(engine.widths) >= stats.steps + sum(stats.proposed.values()) + slots
    if options.get("cost") != "flat":
        assert sum(engine.widths) == stats.steps + sum(stats.proposed.values()) + slots
