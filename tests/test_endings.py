"""An output that ends inside a chunk of accepted drafts: everything ends at the same token.

Drafts, walk and commit each stop at an end by themselves. Here drafts and walk are made to run on,
so that only the commit is left to cut, and every chunk really has more behind the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fakes import EOS, Recital, ScriptedEngine, scripted_model
from lade_edge.runtime import decode as decode_module
from lade_edge.runtime import model as model_module
from lade_edge.runtime import modes
from lade_edge.runtime.commit import Committer
from lade_edge.runtime.drafting.drafter import LookaheadDrafter, StepOutcome
from lade_edge.runtime.drafting.tree_drafter import TreeDrafter
from lade_edge.runtime.verify import Walk, walk

PHRASE = (*b"abc def", EOS, *b"gh. ")
PROMPT = PHRASE * 4
SCRIPT = Recital(lines=PHRASE * 9)
FAR = 99

DRAFTED: list[dict[str, Any]] = [
    {"window": 0, "ngram": 10, "guesses": 1},
    {"window": 2, "ngram": 10, "guesses": 2},
    {"mode": "auto", "cost": "flat", "max_width": 24},
    {"mode": "exact", "cost": "flat", "max_width": 24},
]
ENDINGS: list[tuple[dict[str, Any], int, int, str, str]] = [
    ({}, FAR, 8, "abc def", "eos"),
    ({"stop": " d", "ignore_eos": True}, FAR, 5, "abc", "stop"),
    ({"stop": ("x", "fg"), "ignore_eos": True}, FAR, 9, "abc de", "stop"),
    ({"max_new_tokens": 6, "ignore_eos": True}, FAR, 6, "abc de", "length"),
    ({"max_new_tokens": 2, "ignore_eos": True}, FAR, 2, "ab", "length"),
    ({"ignore_eos": True}, 7, 7, "abc def", "context"),
]


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Makes drafts and walk run on behind an end; lists how many tokens each walk brought."""
    found: list[int] = []
    prepare = modes.prepare

    def walk_on(children: Any, choose: Callable[[int], int], **ends: Any) -> Walk:
        result = walk(children, choose, eos=frozenset(), budget=FAR)
        found.append(len(result.tokens))
        return result

    def prepare_without_ends(*arguments: Any, **options: Any) -> Any:
        return prepare(*arguments, **options | {"stop_tokens": frozenset()})

    for kind in (LookaheadDrafter, TreeDrafter):
        draft = kind.draft
        monkeypatch.setattr(
            kind, "draft", lambda self, root, depth, draft=draft: draft(self, root, FAR)
        )
    monkeypatch.setattr(decode_module, "walk", walk_on)
    monkeypatch.setattr(model_module, "prepare", prepare_without_ends)
    return found


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], int, int]]:
    """Lists what drafters are taught: ids so far, how many are new, drafts that were right."""
    found: list[tuple[tuple[int, ...], int, int]] = []
    for kind in (LookaheadDrafter, TreeDrafter):
        learn: Callable[[Any, StepOutcome], None] = kind.learn

        def taught(self: Any, outcome: StepOutcome, learn: Any = learn) -> None:
            found.append((tuple(outcome.ids), outcome.num_new, len(outcome.path)))
            learn(self, outcome)

        monkeypatch.setattr(kind, "learn", taught)
    return found


@pytest.mark.parametrize("shape", DRAFTED)
@pytest.mark.parametrize(("options", "room", "count", "text", "reason"), ENDINGS)
def test_everything_ends_at_the_token_that_ends_the_output(
    shape: dict[str, Any],
    options: dict[str, Any],
    room: int,
    count: int,
    text: str,
    reason: str,
    chunks: list[int],
    lessons: list[tuple[tuple[int, ...], int, int]],
) -> None:
    """Ids, text, stream, KV cache, what drafts learn, and counts: nothing behind the cut is in any."""
    engine = ScriptedEngine(SCRIPT, capacity=len(PROMPT) + room, max_position=999)
    stream = scripted_model(engine=engine).stream(
        PROMPT, **{"max_new_tokens": 50} | options | shape
    )
    events, lengths = [], []
    for event in stream:
        events.append(event)
        lengths.append(engine.length)
    assert chunks[-1] > len(events[-1].ids), "the last chunk has nothing behind the end"

    output = SCRIPT.lines[len(PROMPT) : len(PROMPT) + count]
    result = stream.result
    assert (result.output_ids, result.text, result.finish_reason) == (output, text, reason)
    assert tuple(token for event in events for token in event.ids) == output
    assert "".join(event.text for event in events) == text
    assert lengths[-1] == len(PROMPT) + count - 1  # the last token has no row yet
    ids, num_new, num_right = lessons[-1]
    assert ids == PROMPT + output
    assert num_right <= num_new == len(events[-1].ids)
    assert result.stats.tokens == count
    assert result.stats.steps == len(events) - 1
    assert sum(result.stats.accepted.values()) == sum(right for *_, right in lessons) < count


@pytest.mark.parametrize("shape", [{"mode": "plain"}, *DRAFTED])
@pytest.mark.parametrize(("options", "room", "count", "text", "reason"), ENDINGS)
def test_every_mode_ends_where_plain_decoding_does(
    shape: dict[str, Any],
    options: dict[str, Any],
    room: int,
    count: int,
    text: str,
    reason: str,
) -> None:
    model = scripted_model(engine=ScriptedEngine(SCRIPT, capacity=len(PROMPT) + room))
    result = model.generate(PROMPT, **{"max_new_tokens": 50} | options | shape)
    assert (len(result.output_ids), result.text, result.finish_reason) == (count, text, reason)
    assert result.stats.tokens == count


@pytest.mark.parametrize("shape", [{"mode": "plain"}, *DRAFTED])
def test_every_one_of_several_end_tokens_ends_the_output(shape: dict[str, Any]) -> None:
    for end in (7, 8, 9):
        phrase = (*b"abcdef", end, *b"gh. ")
        model = scripted_model(Recital(lines=phrase * 9), eos=frozenset({7, 8, 9}))
        result = model.generate(phrase * 4, max_new_tokens=50, **shape)
        assert (result.output_ids, result.text) == (phrase[:7], "abcdef")
        assert result.finish_reason == "eos"


@pytest.mark.parametrize("shape", [{"mode": "plain"}, *DRAFTED])
@pytest.mark.parametrize(("options", "room", "count", "text", "reason"), ENDINGS)
def test_all_modes_end_by_the_same_function(
    shape: dict[str, Any],
    options: dict[str, Any],
    room: int,
    count: int,
    text: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every token of every mode, the first one too, comes out of `Committer.commit`."""
    committed: list[Any] = []
    commit = Committer.commit

    def remember(self: Any, chunk: Sequence[int]) -> Any:
        committed.append(commit(self, chunk))
        return committed[-1]

    monkeypatch.setattr(Committer, "commit", remember)
    model = scripted_model(engine=ScriptedEngine(SCRIPT, capacity=len(PROMPT) + room))
    result = model.generate(PROMPT, **{"max_new_tokens": 50} | options | shape)
    assert result.output_ids == tuple(token for part in committed for token in part.tokens)
    assert result.text == "".join(part.text for part in committed) == text
    assert [part.finish_reason for part in committed] == [None] * (len(committed) - 1) + [reason]
