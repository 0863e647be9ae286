"""Bundles of one model side by side: size, quality, load time, step times, rows that don't depend on width.

    python tools/compare_precisions.py [--rounds 3] [--used 256] [--cpu-time] BUNDLE [BUNDLE ...]

Every bundle is measured in a process of its own, in turns, and the best of the rounds' medians is
taken: other work on the machine only ever makes a step slower. All rows go through the LM head.
`--cpu-time` measures the processor time of one thread: for a machine that others use meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any

WIDTHS = (1, 2, 4, 8, 16)
_STEPS = 25


def measure(
    path: str, used: int, threads: int | None, clock: Callable[[], float]
) -> dict[str, Any]:
    """Load time, median step times in ms, and the runtime's test whether rows depend on width."""
    import numpy as np

    from lade_edge.engines import open_bundle, open_engine
    from lade_edge.runtime.profile_measurement import measure as profile

    started = perf_counter()
    engine = open_engine(open_bundle(path), max_width=max(WIDTHS), threads=threads)
    load_s = perf_counter() - started
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, engine.spec.vocab_size, used + max(WIDTHS))
    engine.prefill(tokens[:used])
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(_STEPS):
        for width in WIDTHS:
            chain = tokens[used : used + width]
            arguments = (np.arange(used, used + width), np.tri(width, dtype=bool), np.arange(width))
            engine.step(chain, *arguments)  # the first step of a width is slower than the next
            began = clock()
            engine.step(chain, *arguments)
            times[width].append(1e3 * (clock() - began))
    return {
        "load_s": load_s,
        "step_ms": {width: float(np.median(spent)) for width, spent in times.items()},
        "invariant_from": profile(engine, WIDTHS).invariant_from,
    }


def row(path: str, results: list[dict[str, Any]]) -> str:
    """A row of the table."""
    from lade_edge.engines import open_bundle

    bundle = open_bundle(path)
    quality, graph = bundle.manifest.quality, bundle.graph
    size = bundle.manifest.files[f"{graph.file}.data"].size_bytes
    best = {str(w): min(float(r["step_ms"][str(w)]) for r in results) for w in WIDTHS}
    ratios = [f"{best[str(width)] / best['2']:.2f}" for width in (8, 16)]
    cells = [
        Path(path).stem if path.endswith(".onnx") else Path(path).name,
        f"{size / 1e6:.0f}",
        f"{quality.perplexity_ratio:.4f}" if quality else "1",
        f"{quality.top1_agreement:.1%}" if quality else "100%",
        f"{min(r['load_s'] for r in results):.1f}",
        *(f"{best[str(width)]:.1f}" for width in WIDTHS),
        *ratios,
        str(results[0]["invariant_from"]),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--used", type=int, default=256, help="committed slots (default 256)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="of one thread, not the clock's")
    parser.add_argument("--one", type=Path, metavar="OUT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.cpu_time:
        arguments.threads = 1
    if arguments.one is not None:
        clock = thread_time if arguments.cpu_time else perf_counter
        found = measure(arguments.bundles[0], arguments.used, arguments.threads, clock)
        arguments.one.write_text(json.dumps(found))
        return 0
    results: dict[str, list[dict[str, Any]]] = {path: [] for path in arguments.bundles}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        options = ["--used", str(arguments.used), "--one", str(out)]
        options += ["--threads", str(arguments.threads)] if arguments.threads else []
        options += ["--cpu-time"] if arguments.cpu_time else []
        for _ in range(arguments.rounds):
            for path in arguments.bundles:
                subprocess.run([sys.executable, __file__, path, *options], check=True)
                results[path].append(json.loads(out.read_text()))
    what = "ms of one thread's processor time" if arguments.cpu_time else "ms"
    print(f"{what} a step, {arguments.used} used slots, load average {os.getloadavg()[0]:.1f}\n")
    steps = " | ".join(f"T={width}" for width in WIDTHS)
    print(
        f"| bundle | MB | perplexity ratio | same best token | load s | {steps} "
        "| t(8)/t(2) | t(16)/t(2) | rows the same from T |"
    )
    print("|" + "---|" * (8 + len(WIDTHS)))
    for path in arguments.bundles:
        print(row(path, results[path]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
