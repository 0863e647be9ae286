from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from fakes import BOS, CHAT, byte_tokenizer
from lade_edge.engines.errors import ConfigError, ManifestError
from lade_edge.runtime.chat_template import ChatTemplate
from lade_edge.runtime.prompt import PromptEncoder


def encoder(template: str | None = CHAT) -> PromptEncoder:
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", BOS)]
    )
    return PromptEncoder(tokenizer, ChatTemplate({"default": template}, {}) if template else None)


def test_raw_text_gets_the_tokenizers_special_tokens() -> None:
    assert encoder().encode("ab", raw=True) == [BOS, *b"ab"]


def test_a_templated_text_gets_no_others() -> None:
    assert encoder().encode("ab") == [*b"[user]ab\n[assistant]"]
    assert encoder("<|bos|>{{ messages[0].content }}").encode("ab") == [BOS, *b"ab"]


def test_ids_pass_unchanged() -> None:
    assert encoder(None).encode([5, 6]) == [5, 6]
    assert encoder(None).encode(np.array([5, 6])) == [5, 6]  # type: ignore[arg-type]


def test_a_tokenizer_never_truncates_or_pads() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    assert PromptEncoder(tokenizer).encode("abcd", raw=True) == [*b"abcd"]


MESSAGE = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("template", "prompt", "options", "reason"),
    [
        (CHAT, "", {}, "empty"),
        (CHAT, [], {}, "empty"),
        (None, "ab", {}, "no chat template; pass raw text"),
        (CHAT, [MESSAGE], {"raw": True}, "need the chat template"),
        (CHAT, "ab", {"raw": True, "system": "x"}, "no system message"),
        (CHAT, "a\udcffb", {}, "not valid text"),
        (CHAT, "a\udcffb", {"raw": True}, "not valid text"),
        ("{{ '' }}", "ab", {}, "no tokens"),
    ],
)
def test_prompts_that_cannot_be_used(
    template: str | None, prompt: Any, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        encoder(template).encode(prompt, **options)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", "{", "not a tokenizer"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer_config.json", "[]", "no JSON object"),
        ("tokenizer_config.json", "\xff", "not JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, name: str, content: str, reason: str) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / name).write_text(content, encoding="latin-1")
    with pytest.raises(ManifestError, match=reason):
        PromptEncoder.from_folder(tmp_path)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"no tokenizer\.json"):
        PromptEncoder.from_folder(tmp_path)


def test_a_folder_with_a_tokenizer_alone(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    assert PromptEncoder.from_folder(tmp_path).encode("ab", raw=True) == [*b"ab"]
