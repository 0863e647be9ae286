from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from fakes import EOS, byte_tokenizer, fallback_tokenizer
from lade_edge.runtime.detokenize import Detokenizer, byte_token_ids, special_token_ids

BYTES = byte_tokenizer()
FALLBACK = fallback_tokenizer()
UNSTRIPPED = fallback_tokenizer(strip=False)
TEXTS = st.text(st.sampled_from("ab  é中😀\n\u0301"), max_size=40)


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer, hidden=special_token_ids(tokenizer))
    return [*(detokenizer.push([token]) for token in ids), detokenizer.flush()]


@settings(deadline=None)
@given(TEXTS)
@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK, UNSTRIPPED])
def test_pieces_make_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    parts = pieces(tokenizer, ids)
    assert "".join(parts) == tokenizer.decode(ids)
    assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)
    assert parts[-1] == ""


@settings(deadline=None)
@given(TEXTS, st.lists(st.integers(1, 7), min_size=1))
@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK, UNSTRIPPED])
def test_chunks_of_any_size_make_the_same_text(
    tokenizer: Tokenizer, text: str, sizes: list[int]
) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    detokenizer = Detokenizer(tokenizer, hidden=special_token_ids(tokenizer))
    found, start = "", 0
    for size in itertools.cycle(sizes):
        if start >= len(ids):
            break
        found += detokenizer.push(ids[start : start + size])
        start += size
    assert found + detokenizer.flush() == tokenizer.decode(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, 255), max_size=60))
def test_any_bytes_decode_as_a_whole(ids: list[int]) -> None:
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


@settings(deadline=None)
@given(st.lists(st.integers(0, FALLBACK.get_vocab_size() + 3), max_size=60))
def test_broken_bytes_cost_only_themselves(ids: list[int]) -> None:
    """A tokenizer gives up on a whole run of bytes; only the broken part should be lost."""
    text = "".join(pieces(UNSTRIPPED, ids))
    data = b"".join(
        (UNSTRIPPED.id_to_token(token) or "").replace("\u2581", " ").encode()
        if token == 0 or token > 256
        else bytes([token - 1])
        for token in ids
    )
    assert text == data.decode("utf-8", "replace")


def test_a_character_comes_with_its_last_byte() -> None:
    emoji = list("😀".encode())
    assert pieces(BYTES, emoji) == ["", "", "", "😀", ""]
    assert pieces(FALLBACK, [byte + 1 for byte in emoji]) == ["", "", "", "😀", ""]


def test_a_token_may_end_one_character_and_begin_another() -> None:
    letters = {letter: number for number, letter in enumerate(("aÃ", "©Ã", "©"))}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    ids = [0] + [1] * 40 + [2]
    assert pieces(tokenizer, ids) == ["a", *["é"] * 41, ""]


def test_the_first_space_alone_is_stripped() -> None:
    ids = FALLBACK.encode("a b  c", add_special_tokens=False).ids
    assert "".join(pieces(FALLBACK, ids)) == "a b  c"
    long = FALLBACK.encode("a " * 40, add_special_tokens=False).ids
    assert "".join(pieces(FALLBACK, long)) == "a " * 40


def test_metaspace_decoder() -> None:
    vocabulary = {"<unk>": 0, "\u2581a": 1, "b": 2, "\u2581": 3}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    ids = [1, 2, 3, 1, 1, 3, 3, 2] * 5
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


def test_special_and_unknown_ids_leave_no_trace() -> None:
    assert pieces(BYTES, [*b"a", EOS, *b"b", 9999]) == ["a", "", "b", "", ""]
    half = "é".encode()
    assert pieces(BYTES, [half[0], EOS, half[1]]) == ["", "", "é", ""]


def test_special_tokens_can_be_shown() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push([EOS]) == "<|eos|>"


def test_byte_fallback_is_recognised() -> None:
    assert byte_token_ids(BYTES) == {}
    assert byte_token_ids(FALLBACK) == {byte + 1: byte for byte in range(256)}


def test_the_cost_of_a_token_does_not_grow() -> None:
    detokenizer = Detokenizer(BYTES)
    for token in [0x80] * 500 + list(b"a" * 500):
        detokenizer.push([token])
        assert len(detokenizer._window) < 20
