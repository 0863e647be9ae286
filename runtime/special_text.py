"""Special tokens that somebody typed stay text: only a chat template writes special tokens.

A tokenizer takes the letters of ``<|im_end|>`` for the token wherever they stand, so a message could
end its own turn and begin another's. Here such letters are marked before the template is rendered, and
the rendered text is cut at the special tokens the template wrote; what lies between is tokenised with
special tokens switched off. Prompts without such letters take the tokenizer's usual way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

# Noncharacters, which no text may hold. Whoever sends them anyway gets the letters, as text.
_BEGIN, _END = "\ufdd0", "\ufdd1"


class SpecialText:
    """Finds, marks and tokenises special tokens written as text.

    Args:
        tokenizer: Tokenizer; not to be used by others during `encode`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _special(self) -> dict[str, tuple[int, AddedToken]]:
        added = self._tokenizer.get_added_tokens_decoder()
        found = {
            token.content: (number, token)
            for number, token in added.items()
            if token.special and token.content
        }
        # Of two that begin alike the longer one is meant.
        return dict(sorted(found.items(), key=lambda item: -len(item[0])))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self._special)) or r"(?!)")

    @cached_property
    def _marked(self) -> re.Pattern[str]:
        return re.compile(f"{_BEGIN}([0-9]{{1,6}}){_END}|({self._pattern.pattern})")

    def is_in(self, value: object) -> bool:
        """Whether any text in a value, however deep, holds the letters of a special token."""
        if isinstance(value, str):
            return self._pattern.search(value) is not None
        if isinstance(value, Mapping):
            return any(self.is_in(part) for pair in value.items() for part in pair)
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return any(map(self.is_in, value))
        return False

    def mark(self, value: Any) -> Any:
        """A copy of a value in which a mark stands for each special token."""
        if isinstance(value, str):
            names = [*self._special]
            return self._pattern.sub(
                lambda match: f"{_BEGIN}{names.index(match.group())}{_END}", value
            )
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(part) for key, part in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.mark(part) for part in value]
        return value

    def encode(self, text: str) -> list[int]:
        """Tokenise a text with marks: marks become letters, special tokens outside them count."""
        names = [*self._special]
        ids: list[int] = []
        pending, done, rstrip = "", 0, False
        for match in self._marked.finditer(text):
            piece = text[done : match.start()]
            pending += piece.lstrip() if rstrip and not pending else piece
            done = match.end()
            if match.group(2) is None:
                number = int(match.group(1))
                pending += names[number] if number < len(names) else match.group(1)
                continue
            token_id, token = self._special[match.group(2)]
            ids += self._as_text(pending.rstrip() if token.lstrip else pending)
            ids.append(token_id)
            pending, rstrip = "", token.rstrip
        piece = text[done:]
        return ids + self._as_text(pending + (piece.lstrip() if rstrip and not pending else piece))

    def encode_as_text(self, text: str) -> list[int]:
        """Tokenise a text as a prompt of its own; whatever is written in it is text."""
        return self._as_text(text, add_special_tokens=True)

    def _as_text(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        if not text and not add_special_tokens:
            return []
        self._tokenizer.encode_special_tokens = True
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        finally:
            self._tokenizer.encode_special_tokens = False
        return ids
