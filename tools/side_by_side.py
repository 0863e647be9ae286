"""Streams one answer, then sets plain, lookahead and automatic decoding side by side.

    python tools/side_by_side.py --engine BUNDLE [PROMPT]

Exit status 1 if they give different ids.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from lade_edge.runtime import Generation, Model, load

MODES = ("plain", "lookahead", "auto")
PROMPT = (
    "Write a Python function that counts how often each word occurs in a text, and show two "
    "examples of its use."
)


def stream(model: Model, prompt: str, max_new_tokens: int) -> Generation:
    """Print the answer as it comes."""
    running = model.stream(prompt, mode="lookahead", max_new_tokens=max_new_tokens)
    for event in running:
        sys.stdout.write(event.text)
        sys.stdout.flush()
    print()
    return running.result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("-n", "--max-new-tokens", type=int, default=128)
    parser.add_argument("prompt", nargs="?", default=PROMPT)
    arguments = parser.parse_args()
    model = load(arguments.engine)
    print(f"== {model.engine.spec.name}\n> {arguments.prompt}\n")
    model.profile()  # the device is measured once, before anything is timed
    stream(model, arguments.prompt, arguments.max_new_tokens)
    settings = {"max_new_tokens": arguments.max_new_tokens}
    results = {mode: model.generate(arguments.prompt, mode=mode, **settings) for mode in MODES}
    table = Table("mode", "tokens", "steps", "tokens a step", "tokens a second", "ids")
    for mode, result in results.items():
        stats = result.stats
        equal = "equal" if result.output_ids == results["plain"].output_ids else "DIFFERENT"
        table.add_row(
            mode,
            str(stats.tokens),
            str(stats.steps),
            f"{stats.tokens_per_step:.2f}",
            f"{stats.tokens_per_second:.1f}",
            "" if mode == "plain" else equal,
        )
    Console().print(table)
    return int(len({result.output_ids for result in results.values()}) > 1)


if __name__ == "__main__":
    raise SystemExit(main())
