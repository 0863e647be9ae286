"""Tokens to text as they come, at constant cost per token.

A token is decoded together with a few before it, because a decoder may join, strip or merge across
tokens. Text is released once no later token can change it: an incomplete UTF-8 sequence stays
back. The released pieces, joined, are what the tokenizer makes of all the tokens at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 8
_CONTEXT = 4  # tokens, so as many bytes at least: an incomplete UTF-8 sequence has three at most


def special_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids the tokenizer marks as special."""
    added = tokenizer.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def byte_token_ids(tokenizer: Tokenizer) -> dict[int, int]:
    """Ids of the tokens that stand for single bytes, with their byte; empty without byte fallback."""
    probe = tokenizer.token_to_id("<0x41>")
    if probe is None or tokenizer.decode([probe], skip_special_tokens=False) != "A":
        return {}
    ids = ((tokenizer.token_to_id(f"<0x{byte:02X}>"), byte) for byte in range(256))
    return {token_id: byte for token_id, byte in ids if token_id is not None}


class Detokenizer:
    """Turns a stream of tokens into a stream of text.

    Args:
        tokenizer: Tokenizer whose decoder is used.
        hidden: Ids that leave no trace in the text.
        byte_tokens: What `byte_token_ids` says of the tokenizer.
    """

    __slots__ = ("_byte_tokens", "_hidden", "_released", "_tokenizer", "_utf8", "_window")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        hidden: frozenset[int] = frozenset(),
        byte_tokens: dict[int, int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._byte_tokens = byte_token_ids(tokenizer) if byte_tokens is None else byte_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._window: list[int] = []
        self._released = 0

    def push(self, tokens: Sequence[int]) -> str:
        """Take tokens, return the text that became certain."""
        pieces = []
        waiting = False
        for token in tokens:
            if token in self._hidden:
                continue
            if self._byte_tokens:
                byte = self._byte_tokens.get(token)
                if byte is not None:
                    pieces.append(self._push_byte(token, byte))
                    waiting = False
                    continue
                if self._tokenizer.id_to_token(token) is None:
                    continue
                # A decoder gives up on a whole run of byte tokens; here only the broken part fails.
                pieces.append(self._utf8.decode(b"", final=True))
            self._window.append(token)
            waiting = True
        if waiting:
            pieces.append(self._release_certain())
        return "".join(pieces)

    def flush(self) -> str:
        """Release what was held back, at the end of the output."""
        return self._utf8.decode(b"", final=True) + self._release_window()

    def _release_certain(self) -> str:
        text = self._decode()
        certain = len(text) - text.endswith(_REPLACEMENT)
        piece = text[self._released : certain]
        self._released = max(self._released, certain)
        if len(self._window) > _LONGEST:
            held = len(text) - self._released
            del self._window[:-_CONTEXT]
            self._released = len(self._decode()) - held
        return piece

    def _push_byte(self, token: int, byte: int) -> str:
        held = self._release_window()
        # Context for the next token: a decoder strips a space only from the very first one.
        self._window = [token]
        self._released = len(self._decode())
        return held + self._utf8.decode(bytes([byte]))

    def _release_window(self) -> str:
        text = self._decode()
        piece = text[self._released :]
        self._released = len(text)
        return piece

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)
