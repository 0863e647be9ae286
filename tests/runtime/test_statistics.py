from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from fakes import scripted_model
from lade_edge.runtime.drafting.tree import DraftTree
from lade_edge.runtime.report import print_statistics
from lade_edge.runtime.statistics import Meter


def test_speed_counts_what_follows_the_first_token() -> None:
    meter = Meter(30)
    meter.prefilled(reused=10, engine_s=2.0, total_s=2.5)
    meter.overhead(0.25)
    tree = DraftTree()
    tree.reset(0, max_nodes=9, max_depth=9)
    tree.add_chain([1, 2], 1.0, "pool")
    tree.add_chain([3], 0.5, "window")
    meter.step(tree, [1], tokens=2, width=4, engine_s=1.0, text_s=0.25, total_s=1.5)
    meter.step(tree, [], tokens=1, width=4, engine_s=1.0, text_s=0.0, total_s=1.25)
    stats = meter.statistics()
    assert (stats.prompt_tokens, stats.tokens, stats.steps) == (30, 4, 2)
    assert stats.tokens_per_step == 1.5
    assert (stats.engine_s, stats.host_s, stats.text_s) == (2.0, 0.75, 0.25)
    assert stats.tokens_per_second == 1.0
    assert stats.reused_tokens == 10
    assert stats.prefill_tokens_per_second == 10.0
    assert stats.time_to_first_token_s == 2.5
    assert stats.proposed == {"pool": 4, "window": 2}
    assert stats.accepted == {"pool": 1}
    assert stats.widths == {4: 2}


def test_nothing_ran() -> None:
    stats = Meter(3).statistics()
    assert (stats.tokens, stats.steps, stats.tokens_per_step) == (0, 0, 0.0)
    assert stats.tokens_per_second == stats.prefill_tokens_per_second == 0.0


def test_every_figure_is_in_the_json() -> None:
    stats = scripted_model().generate("abc", max_new_tokens=30).stats
    figures = json.loads(json.dumps(stats.as_dict()))
    assert {
        *("steps", "tokens", "tokens_per_step", "tokens_per_second"),
        *("time_to_first_token_s", "host_s", "engine_s"),
    } <= set(figures)
    assert stats.host_s > 0 < stats.engine_s
    assert stats.time_to_first_token_s >= stats.prefill_s


@pytest.mark.parametrize("options", [{}, {"mode": "plain"}, {"max_new_tokens": 0}])
def test_the_table(options: dict[str, Any]) -> None:
    generation = scripted_model().generate("abc", **{"max_new_tokens": 30, **options})
    file = io.StringIO()
    print_statistics(generation, file)
    text = file.getvalue()
    assert f"{generation.stats.tokens} tokens in {generation.stats.steps} steps" in text
    assert generation.finish_reason in text
    assert "reused" not in text
    assert ("window 2" in text) == (generation.mode == "lookahead")


def test_the_table_tells_reused_tokens() -> None:
    model = scripted_model()
    for _ in range(2):
        generation = model.generate("abc", max_new_tokens=5, reuse_prefix=True)
    file = io.StringIO()
    print_statistics(generation, file)
    assert re.search(rf"reused +{generation.prompt_tokens - 1} tokens", file.getvalue())
