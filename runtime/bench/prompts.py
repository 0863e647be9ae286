"""Prompts of a bench: a small set of our own, or a file of the reader's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lade_edge.engines.errors import ConfigError

OWN_PROMPTS = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPrompt:
    """One prompt of a bench file.

    Attributes:
        id: Its name.
        category: Prompts of one category are summed up together.
        text: The prompt; of a conversation the first turn.
        raw: Whether it is completed as it is, without the chat template.
    """

    id: str
    category: str
    text: str
    raw: bool


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read a JSONL file whose rows have ``id``, ``category`` and ``turns`` (chat) or ``prompt`` (raw).

    Raises:
        ConfigError: If the file can't be read or a row isn't of this form.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(
            f"{path} can't be read ({error.strerror}); expected a JSONL file of prompts"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason}); convert it first") from error
    prompts = [_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ConfigError(f"{path} holds no prompts; expected one JSON object per line")
    return prompts


def _prompt(path: Path, number: int, line: str) -> BenchPrompt:
    try:
        row = json.loads(line)
        raw = "prompt" in row
        text = row["prompt"] if raw else row["turns"][0]
        if not raw and not isinstance(row["turns"], list):
            text = None  # a text where a list of texts belongs
        names = str(row["id"]), str(row["category"])
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        text = None
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"{path}, line {number} is no prompt; expected a JSON object with all of id, category "
            "and either turns (a list of texts) or prompt (a text)"
        )
    return BenchPrompt(id=names[0], category=names[1], text=text, raw=raw)
