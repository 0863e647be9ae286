from __future__ import annotations

import pytest

from fakes import EOS, byte_tokenizer, fallback_tokenizer
from lade_edge.runtime.commit import Commit, Committer
from lade_edge.runtime.detokenize import Detokenizer


def committer(
    *,
    max_new_tokens: int = 50,
    capacity: int = 100,
    stop: tuple[str, ...] = (),
    eos: frozenset[int] = frozenset({EOS}),
) -> Committer:
    return Committer(
        Detokenizer(byte_tokenizer(), hidden=frozenset({EOS})),
        prompt_length=10,
        max_new_tokens=max_new_tokens,
        capacity=capacity,
        eos=eos,
        stop=stop,
    )


def test_an_end_token_stays_in_the_ids_and_out_of_the_text() -> None:
    chunk = [*b"ab", EOS, *b"cd"]
    assert committer().commit(chunk) == Commit([*b"ab", EOS], "ab", "eos")


def test_ignored_end_tokens() -> None:
    chunk = [*b"a", EOS, *b"b"]
    assert committer(eos=frozenset()).commit(chunk) == Commit(chunk, "ab", None)


def test_a_stop_text_keeps_the_token_that_completed_it() -> None:
    assert committer(stop=("bc",)).commit(b"abcd") == Commit([*b"abc"], "a", "stop")


def test_a_stop_text_across_chunks() -> None:
    boundary = committer(stop=("bc",))
    assert boundary.commit(b"ab") == Commit([*b"ab"], "a", None)
    assert boundary.commit(b"cd") == Commit([*b"c"], "", "stop")


def test_length_counts_every_token() -> None:
    boundary = committer(max_new_tokens=3)
    assert boundary.remaining == 3
    assert boundary.commit(b"a").finish_reason is None
    assert boundary.remaining == 2
    assert boundary.commit(b"bcd") == Commit([*b"bc"], "bc", "length")
    assert boundary.remaining == 0


def test_context_counts_prompt_and_output() -> None:
    boundary = committer(capacity=12)
    assert boundary.remaining == 2
    assert boundary.commit(b"abc") == Commit([*b"ab"], "ab", "context")


def test_reasons_in_order() -> None:
    both = committer(max_new_tokens=2, capacity=12, stop=("b",))
    assert both.commit(b"ab").finish_reason == "stop"
    assert committer(max_new_tokens=2, capacity=12).commit(b"ab").finish_reason == "length"
    assert committer(max_new_tokens=1).commit([EOS]).finish_reason == "eos"


def test_the_end_releases_what_was_held_back() -> None:
    assert committer(max_new_tokens=2, stop=("bc",)).commit(b"ab").text == "ab"
    cut = "é".encode()[:1]
    assert committer(max_new_tokens=2).commit(b"a" + cut).text == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("stop", "text"),
    [("b", "a "), ("a b", ""), (" c", "a b"), ("b c", "a "), ("\nd", "a b c"), ("é", "a b c\nd")],
)
def test_stop_texts_are_found_in_text_however_it_was_tokenised(stop: str, text: str) -> None:
    """The ids of a stop text by itself appear nowhere among those of the text that holds it."""
    tokenizer = fallback_tokenizer()
    ids = tokenizer.encode("a b c\ndé", add_special_tokens=False).ids
    alone = tokenizer.encode(stop, add_special_tokens=False).ids
    inside = any(ids[start : start + len(alone)] == alone for start in range(len(ids)))
    assert not inside or stop in ("b", "a b", "b c")
    for size in (1, 2, 3, len(ids)):
        boundary = Committer(
            Detokenizer(tokenizer), prompt_length=1, max_new_tokens=99, capacity=999, stop=(stop,)
        )
        found, reason = "", None
        for start in range(0, len(ids), size):
            piece = boundary.commit(ids[start : start + size])
            found, reason = found + piece.text, piece.finish_reason
            if reason:
                break
        assert (found, reason) == (text, "stop")
