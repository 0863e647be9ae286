"""Compares exact decoding with plain decoding at width 2: ids, and logits of every committed row.

    python tools/compare_exact.py --engine BUNDLE --prompts FILE [FILE ...] [--tokens 100000]

Prompts are used in turn; each further round asks for a continuation with another opening, so that no
text is compared twice. Exit status 1 at the first difference; Ctrl-C prints what was compared so far.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from recording import RecordingEngine

from lade_edge.runtime import load
from lade_edge.runtime.bench.prompts import read_prompts

OPENINGS = (
    "", "In other words: ", "Briefly. ", "As a letter to a friend. ", "In five points. ",
    "For a child of ten. ", "As a dialogue. ", "With an example. ", "In the style of a newspaper. ",
    "Step by step. ", "As a poem. ", "For an expert. ",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--skip", type=int, default=0, help="texts that were compared before")
    parser.add_argument("-n", "--max-new-tokens", type=int, default=256)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = load(arguments.engine, threads=arguments.threads)
    profile = model.profile()
    engine = RecordingEngine(model.engine)
    model.engine = engine
    prompts = [prompt for path in arguments.prompts for prompt in read_prompts(path)]
    pairs = [(opening, prompt) for opening in OPENINGS for prompt in prompts]
    tokens = texts = steps = 0
    with contextlib.suppress(KeyboardInterrupt):  # what was compared until then still counts
        for opening, prompt in pairs[arguments.skip :]:
            if tokens >= arguments.tokens:
                break
            runs = []
            for mode in ("plain", "exact"):
                engine.digests.clear()
                result = model.generate(
                    opening + prompt.text, raw=prompt.raw, mode=mode, min_width=2,
                    max_new_tokens=arguments.max_new_tokens, ignore_eos=True,
                )  # fmt: skip
                runs.append((result.output_ids, tuple(engine.digests)))
            if runs[0] != runs[1]:
                print(json.dumps({"differs": prompt.id, "opening": opening, "after": tokens}))
                return 1
            texts += 1
            tokens += len(runs[0][0])
            steps += result.stats.steps
            print(f"\r{texts} texts, {tokens} tokens equal", end="", file=sys.stderr, flush=True)
    print(
        json.dumps({
            "engine": engine.spec.name,
            "invariant_from": profile.invariant_from,
            "skipped": arguments.skip,
            "texts": texts,
            "tokens": tokens,
            "exact_steps": steps,
            "ids_and_logits_equal": True,
        })
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
