"""Bench prompts: a JSONL row has ``id, category`` and either ``turns`` (chat) or ``prompt`` (raw)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class BenchPrompt:
    """One row; ``raw`` tells whether it is completed without a chat template."""

    id: str
    category: str
    text: str
    raw: bool


def read_prompts(path: Path) -> list[BenchPrompt]:
    """Read rows, of a chat the first turn only."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [
        BenchPrompt(
            id=row["id"],
            category=row["category"],
            text=row["prompt"] if "prompt" in row else row["turns"][0],
            raw="prompt" in row,
        )
        for row in rows
    ]
