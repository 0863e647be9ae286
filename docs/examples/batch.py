"""Answers a file of prompts, one a line, and goes on where it was interrupted.

python batch.py BUNDLE prompts.txt answers.jsonl

Every answer is one line of JSON, written in one piece and flushed to disk. A line that a power cut left
incomplete is cut off at the next start; prompts that have an answer are skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import track

from lade_edge.engines.errors import LadeError
from lade_edge.runtime import GenerationConfig, Model, load


def answer_all(model: Model, prompts: list[str], output: Path, config: GenerationConfig) -> int:
    """Answer what has no answer yet.

    Args:
        model: Loaded model.
        prompts: All prompts.
        output: File of answers; made if absent.
        config: Options of every answer.

    Returns:
        How many were answered now.
    """
    with open(output, "a+b") as file:
        done = _finished(file)
        todo = [(number, text) for number, text in enumerate(prompts) if number not in done]
        for number, text in track(todo, "answering", console=Console(stderr=True)):
            record: dict[str, object] = {"number": number, "prompt": text}
            try:
                result = model.generate(text, config=config)
                record |= {"answer": result.text, "tokens": len(result.output_ids)}
            except LadeError as error:  # this prompt can't be answered; the others can
                record |= {"error": str(error)}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    return len(todo)


def _finished(file: BinaryIO) -> set[int]:
    """Numbers of the answers in a file, whose incomplete last line is cut off."""
    file.seek(0)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    file.truncate(whole)
    return {json.loads(line)["number"] for line in content[:whole].splitlines()}


def main() -> int:
    """Read the prompts and answer them."""
    parser = argparse.ArgumentParser(description="Answer a file of prompts, one a line.")
    parser.add_argument("bundle")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    arguments = parser.parse_args()
    prompts = [line for line in arguments.prompts.read_text(encoding="utf-8").splitlines() if line]
    try:
        config = GenerationConfig(max_new_tokens=arguments.max_new_tokens)
        count = answer_all(load(arguments.bundle), prompts, arguments.output, config)
    except LadeError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{count} answered now, {len(prompts)} in {arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
