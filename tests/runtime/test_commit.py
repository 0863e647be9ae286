from __future__ import annotations

from fakes import EOS, byte_tokenizer
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
