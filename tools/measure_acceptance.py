"""Tokens a step of lookahead decoding on a file of prompts, with plain decoding's ids beside it.

    python tools/measure_acceptance.py --engine BUNDLE --prompts FILE [-n 64] [W,N,G ...]

Tokens a step are all tokens after each first one over all decode steps. Exit status 1 if any ids
differ from plain decoding's.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from lade_edge.runtime import load
from lade_edge.runtime.bench.prompts import read_prompts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("-n", "--max-new-tokens", type=int, default=64)
    parser.add_argument("shapes", nargs="*", default=["5,4,5"], help="W,N,G (default 5,4,5)")
    arguments = parser.parse_args()
    model = load(arguments.engine)
    prompts = read_prompts(arguments.prompts)
    settings = {"max_new_tokens": arguments.max_new_tokens}
    plain = {
        row.id: model.generate(row.text, raw=row.raw, mode="plain", **settings).output_ids
        for row in prompts
    }
    differing = 0
    for shape in arguments.shapes:
        window, ngram, guesses = map(int, shape.split(","))
        tokens = steps = equal = 0
        for row in prompts:
            result = model.generate(
                row.text, raw=row.raw, window=window, ngram=ngram, guesses=guesses, **settings
            )
            tokens += result.stats.tokens - 1
            steps += result.stats.steps
            equal += result.output_ids == plain[row.id]
        differing += len(prompts) - equal
        print(
            json.dumps({
                "window": window,
                "ngram": ngram,
                "guesses": guesses,
                "prompts": len(prompts),
                "ids_equal": equal,
                "tokens": tokens,
                "steps": steps,
                "tokens_per_step": round(tokens / max(steps, 1), 3),
            }),
            flush=True,
        )  # fmt: skip
    return int(differing > 0)


if __name__ == "__main__":
    raise SystemExit(main())
