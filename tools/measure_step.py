"""Time of one step by its width, and the host's share of a lookahead step.

    python tools/measure_step.py --engine BUNDLE [--used 256] [--rounds 30]

Widths are interleaved in every round and the median of all rounds is printed, so that a machine
whose speed drifts still gives true ratios. All rows go through the LM head.
"""

from __future__ import annotations

import argparse
import json
import os
from statistics import median

import numpy as np

from lade_edge.engines import open_bundle, open_engine
from lade_edge.runtime import load

WIDTHS = (1, 2, 4, 8, 12, 16, 32, 64)


def step_times_ms(path: str, used: int, rounds: int, threads: int | None) -> dict[int, float]:
    """Median milliseconds of a step of each width behind ``used`` committed slots."""
    from time import perf_counter

    engine = open_engine(open_bundle(path), max_width=max(WIDTHS), threads=threads)
    rng = np.random.default_rng(0)
    engine.prefill(rng.integers(0, engine.spec.vocab_size, used))
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(rounds + 3):
        for width in WIDTHS:
            tokens = rng.integers(0, engine.spec.vocab_size, width)
            arguments = (np.arange(used, used + width), np.tri(width, dtype=bool), np.arange(width))
            engine.step(tokens, *arguments)  # the first step of a width is slower than the next
            started = perf_counter()
            engine.step(tokens, *arguments)
            times[width].append(perf_counter() - started)
    return {width: 1e3 * float(np.median(values[3:])) for width, values in times.items()}


def host_microseconds(path: str, threads: int | None) -> dict[str, float]:
    """Host time a step of lookahead decoding with steps of up to 16 tokens: medians of five runs."""
    model = load(path, threads=threads)
    runs = [
        model.generate(
            "Write a story about a lighthouse keeper and his dog.",
            window=4, ngram=3, guesses=4, max_new_tokens=192, ignore_eos=True,
        ).stats
        for _ in range(6)
    ][1:]  # fmt: skip
    steps = runs[0].steps
    return {
        "host_us_per_step": 1e6 * median(stats.host_s for stats in runs) / steps,
        "text_us_per_step": 1e6 * median(stats.text_s for stats in runs) / steps,
        "mean_width": sum(width * count for width, count in runs[0].widths.items()) / steps,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--used", type=int, default=256, help="committed slots (default 256)")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    print(json.dumps({"load_average": os.getloadavg()[0]}))
    times = step_times_ms(arguments.engine, arguments.used, arguments.rounds, arguments.threads)
    print(json.dumps({"step_ms": {width: round(ms, 2) for width, ms in times.items()}}))
    ratios = {f"t({width})/t(2)": round(times[width] / times[2], 3) for width in (1, 8, 16, 32)}
    print(json.dumps(ratios))
    host = host_microseconds(arguments.engine, arguments.threads)
    print(json.dumps({key: round(value, 1) for key, value in host.items()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
