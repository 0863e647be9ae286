"""Prompts to token ids, the same ids as transformers gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer

from lade_edge.engines.errors import ConfigError, ManifestError
from lade_edge.runtime.chat_template import ChatTemplate, Message

Prompt = str | Sequence[Message] | Sequence[int]
"""A text, a conversation, or token ids."""


class PromptEncoder:
    """Templates and tokenises.

    Attributes:
        tokenizer: The tokenizer; neither truncates nor pads.

    Args:
        tokenizer: Tokenizer of the model.
        template: Its chat templates, None if it has none.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self._template = template

    @classmethod
    def from_folder(cls, folder: Path) -> PromptEncoder:
        """Load ``tokenizer.json`` and the chat template of a model folder.

        Raises:
            ManifestError: If a file is missing or damaged.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ManifestError(f"{folder} has no tokenizer.json; export the model again")
        try:
            tokenizer = Tokenizer.from_file(str(path))
        # The library raises a bare Exception for every kind of damage.
        except Exception as error:
            raise ManifestError(
                f"{path} is not a tokenizer this version of tokenizers reads ({error}); export the "
                "model again or upgrade tokenizers"
            ) from error
        return cls(tokenizer, ChatTemplate.from_folder(folder, _tokenizer_config(folder)))

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[int]:
        """Turn a prompt into token ids.

        Args:
            prompt: A text is one user message, or with ``raw`` taken as it is; a conversation is
                templated; token ids pass unchanged.
            raw: Leave the chat template out and add special tokens as the tokenizer does.
            system: System message to put first.
            tools: JSON schemas for the template.

        Returns:
            At least one id.

        Raises:
            ConfigError: If the prompt is empty, isn't text, or can't be templated.
        """
        if not isinstance(prompt, (str, Sequence, np.ndarray)):
            raise ConfigError(
                f"the prompt is of type {type(prompt).__name__}; expected a text, messages or token ids"
            )
        if len(prompt) == 0:
            raise ConfigError("the prompt is empty; expected at least one character or message")
        if isinstance(prompt, str):
            if raw:
                if system is not None or tools is not None:
                    raise ConfigError("a raw prompt has no system message and no tools; drop raw")
                return self._tokenise(prompt, add_special_tokens=True)
            messages: Sequence[Message] = [{"role": "user", "content": prompt}]
        elif isinstance(prompt[0], Mapping):
            messages = cast("Sequence[Message]", prompt)
        else:
            if isinstance(prompt[0], (str, Sequence, np.ndarray)):
                raise ConfigError(
                    f"the prompt is a list of {len(prompt)} prompts; expected a single one, "
                    "generate them one after the other"
                )
            ids = [*cast("Sequence[int]", prompt)]
            if isinstance(prompt, bytes) or not all(isinstance(i, (int, np.integer)) for i in ids):
                raise ConfigError(
                    "the prompt is neither a text nor messages nor whole numbers; expected one of "
                    "these"
                )
            return [int(token) for token in ids]
        if raw:
            raise ConfigError("messages need the chat template; pass a text for a raw prompt")
        if self._template is None:
            raise ConfigError("the model has no chat template; pass raw text (--raw)")
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        # The template writes the special tokens itself; adding them again would double them.
        return self._tokenise(
            self._template.render(messages, tools=tools), add_special_tokens=False
        )

    def _tokenise(self, text: str, *, add_special_tokens: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the prompt is not valid text (character {error.start} is half a surrogate pair); "
                "expected UTF-8"
            ) from error
        try:
            ids: list[int] = self.tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the library raises bare exceptions, and panics beside them
            raise ConfigError(
                f"the model's tokenizer can't encode the prompt ({error}); change the prompt, or "
                "export the model again with a tokenizer that can"
            ) from error
        if not ids:
            raise ConfigError("the prompt has no tokens; expected at least one")
        return ids


def _tokenizer_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ManifestError(f"{path} is not JSON ({error}); export the model again") from error
    if not isinstance(config, dict):
        raise ManifestError(f"{path} holds no JSON object; export the model again")
    return config
