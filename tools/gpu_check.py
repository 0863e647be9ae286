"""Everything about a GPU that can't be known without one: does it build, is it right, is it fast?

    python tools/gpu_check.py BUNDLE [--way WAY ...] [--report gpu-check.json]

A way is what runs the graph: a plan of TensorRT or TensorRT-RTX, or a provider of ONNX Runtime. Each
runs in a process of its own, since a library without its driver may end it, and is compared with ONNX
Runtime on the CPU. ``--way cpu`` tries the script itself where there is no device.
Exit status 0 if a way passed and none failed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from lade_edge.engines import Bundle, ConfigError, LadeError, open_bundle
from lade_edge.engines.cuda_driver import probe_driver
from lade_edge.engines.doctor import examine, this_machine
from lade_edge.engines.protocol import Engine
from lade_edge.export.parity import check_parity, engine_reference
from lade_edge.runtime import Model, load
from lade_edge.runtime.bench.prompts import OWN_PROMPTS, read_prompts

MORE_PROMPTS = Path(__file__).with_name("gpu_check_prompts.jsonl")
PLANS = {"tensorrt": "tensorrt", "rtx": "tensorrt_rtx"}
PROVIDERS = {"cuda": "cuda", "ort-tensorrt": "tensorrt", "cpu": "cpu"}
WIDTHS = (1, 2, 4, 8, 16, 32, 64)
MODES: tuple[Any, ...] = ("plain", "lookahead", "auto")
_ROUNDS, _USED = 12, 256
_CAPACITY = 1024
_PATIENCE_S = 900  # a build on a board takes minutes; a hung library takes for ever


def check_way(way: str, bundle: Bundle, budget_s: float, tokens: int) -> dict[str, Any]:
    """Build, compare, time.

    Raises:
        LadeError: In one sentence, why this way can't be gone.
    """
    started = perf_counter()
    found: dict[str, Any] = {"way": way}
    with tempfile.TemporaryDirectory(prefix="lade-gpu-check-") as folder:
        path, device = bundle.folder / "model.onnx", PROVIDERS.get(way, "cpu")
        if way == "cpu":
            path = bundle.folder
        elif way in PLANS:
            path = Path(folder) / "check.plan"
            found["build"] = build(bundle, path, PLANS[way])
        capacity = min(_CAPACITY, bundle.manifest.capacity)
        began = perf_counter()
        model = load(path, capacity=capacity, max_width=max(WIDTHS), device=device)
        found["load_s"] = perf_counter() - began
        found["engine"] = model.engine.spec.name
        precision = "fp16" if way in PLANS else "fp32"
        found["parity"] = check_parity(
            model.engine, bundle.manifest.model, engine_reference(bundle), precision
        )
        found["step_ms"] = step_times_ms(model.engine)
        left = budget_s - (perf_counter() - started)
        found["prompts"] = run_prompts(model, left, tokens)
    found["seconds"] = perf_counter() - started
    return found


def build(bundle: Bundle, plan: Path, flavour: str) -> dict[str, Any]:
    from lade_edge.export.plan_export import PlanOptions, export_plan

    began = perf_counter()
    options = PlanOptions(capacity=min(_CAPACITY, bundle.manifest.capacity), flavour=flavour)
    report = export_plan(str(bundle.folder / "model.onnx"), plan, options)
    record = report.record
    return {
        "seconds": perf_counter() - began,
        "version": record.version,
        "form": record.form,
        "layers": report.layers,
        "plan_bytes": record.plan.size_bytes,
        "notes": report.notes,
    }


def step_times_ms(engine: Engine) -> dict[int, float]:
    """Median of a whole step by width, all rows wanted; widths interleaved in every round."""
    used = min(_USED, engine.spec.capacity - 1)
    rng = np.random.default_rng(0)
    engine.reset()
    engine.prefill(rng.integers(0, engine.spec.vocab_size, used))
    widths = [width for width in WIDTHS if width <= engine.spec.max_width]
    times: dict[int, list[float]] = {width: [] for width in widths}
    for round_number in range(_ROUNDS + 2):  # a width's first steps prepare it
        for width in widths:
            tokens = rng.integers(0, engine.spec.vocab_size, width)
            began = perf_counter()
            chain = np.tri(width, dtype=np.bool_)
            engine.step(tokens, np.arange(used, used + width), chain, np.arange(width))
            if round_number >= 2:
                times[width].append(1e3 * (perf_counter() - began))
    engine.reset()
    return {width: median(spent) for width, spent in times.items()}


def run_prompts(model: Model, budget_s: float, tokens: int) -> dict[str, Any]:
    """Every prompt in every mode, in turn, until the time is over; sums over what was complete."""
    began = perf_counter()
    every = read_prompts(OWN_PROMPTS) + read_prompts(MORE_PROMPTS)
    room = model.engine.spec.capacity - tokens
    prompts = [p for p in every if len(model.prompts.encode(p.text, raw=p.raw)) <= room]
    if not prompts:
        raise ConfigError(f"no prompt leaves room for {tokens} tokens; export with more --capacity")
    model.profile()
    model.generate(prompts[0].text, raw=prompts[0].raw, max_new_tokens=8, mode="plain")
    sums = {mode: {"tokens": 0, "steps": 0, "engine_s": 0.0, "host_s": 0.0} for mode in MODES}
    equal = dict.fromkeys(MODES[1:], 0)
    parts: dict[str, list[str]] = {mode: [] for mode in MODES[1:]}
    done = 0
    for prompt in prompts:
        results = {
            mode: model.generate(prompt.text, raw=prompt.raw, mode=mode, max_new_tokens=tokens)
            for mode in MODES
        }
        for mode, result in results.items():
            stats = result.stats
            sums[mode]["tokens"] += stats.tokens - 1
            sums[mode]["steps"] += stats.steps
            sums[mode]["engine_s"] += stats.engine_s
            sums[mode]["host_s"] += stats.host_s + stats.text_s
        for mode in equal:
            same = results[mode].output_ids == results["plain"].output_ids
            equal[mode] += same
            parts[mode] += [] if same else [prompt.id]
        done += 1
        if perf_counter() - began > budget_s:
            break
    found: dict[str, Any] = {"prompts": done, "too_long": len(every) - len(prompts)}
    found |= {"max_new_tokens": tokens, "modes": {}}
    for mode, total in sums.items():
        seconds, steps = total["engine_s"] + total["host_s"], max(total["steps"], 1)
        found["modes"][mode] = {
            "tokens_per_second": total["tokens"] / max(seconds, 1e-9),
            "tokens_per_step": total["tokens"] / steps,
            "host_us_per_step": 1e6 * total["host_s"] / steps,
        }
        if mode in equal:  # in fp16 ids may part at near ties
            found["modes"][mode] |= {"ids_equal": equal[mode], "ids_differ": parts[mode]}
    return found


def machine() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "lade": version("lade-edge"),
        "python": platform.python_version(),
        "system": platform.platform(),
        "driver": asdict(probe_driver()),
        "doctor": [asdict(finding) for finding in examine(this_machine())],
    }


def run_apart(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One way in a process of its own; what went wrong comes back as a sentence."""
    words = [sys.executable, __file__, str(arguments.bundle), "--inside", "--way", way]
    words += ["--budget", str(arguments.budget), "--tokens", str(arguments.tokens)]
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return {"way": way, "failed": f"no answer in {_PATIENCE_S} s", "status": None}
    lines = ended.stdout.splitlines()
    if ended.returncode == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found
    last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
    state = "not here" if ended.returncode == 3 else "failed"
    return {"way": way, state: last, "status": ended.returncode}


def inside(arguments: argparse.Namespace) -> int:
    """The child: 0 with a line of JSON, 3 if a library or provider isn't here, 1 if it fails."""
    (way,) = arguments.way
    try:
        bundle = open_bundle(arguments.bundle / "model.onnx")
        found = check_way(way, bundle, arguments.budget, arguments.tokens)
    except LadeError as error:
        print(error, file=sys.stderr)
        words = ("is not installed", "lacks the package", "this onnxruntime")
        return 3 if any(part in str(error) for part in words) else 1
    print(json.dumps(found))
    return 0


def say(found: dict[str, Any]) -> None:
    """One way in a few lines."""
    for state in ("not here", "failed"):
        if state in found:
            print(f"{found['way']}: {state}: {found[state]}")
            return
    print(f"{found['way']}: {found['engine']}, {found['seconds']:.0f} s")
    if "build" in found:
        made = found["build"]
        size = made["plan_bytes"] / 1e6
        print(f"  built in {made['seconds']:.0f} s, form {made['form']}, {size:,.0f} MB")
    print("  parity " + ", ".join(f"{step} {error:.1e}" for step, error in found["parity"].items()))
    print("  step ms " + ", ".join(f"{width}: {ms:.2f}" for width, ms in found["step_ms"].items()))
    for mode, figures in found["prompts"]["modes"].items():
        ids = f", {figures['ids_equal']} of {found['prompts']['prompts']} with plain's ids" if (
            "ids_equal" in figures
        ) else ""  # fmt: skip
        print(
            f"  {mode}: {figures['tokens_per_second']:.1f} tokens/s, "
            f"{figures['tokens_per_step']:.2f} a step, host {figures['host_us_per_step']:.0f} us{ids}"
        )


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path, help="bundle folder with a canonical model.onnx")
    parser.add_argument(
        "--way", action="append", choices=[*PLANS, *PROVIDERS],
        help="may be repeated (default: all but cpu)",
    )  # fmt: skip
    parser.add_argument("--report", type=Path, default=Path("gpu-check.json"))
    parser.add_argument("--budget", type=float, default=60, help="seconds a way may take, about")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per prompt")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.inside:
        return inside(arguments)
    ways = arguments.way or [*PLANS, *(way for way in PROVIDERS if way != "cpu")]
    reason = probe_driver().reason
    if reason and ways != ["cpu"]:
        print(f"gpu_check: {reason}; run this on a machine with a device", file=sys.stderr)
        return 1
    try:
        open_bundle(arguments.bundle / "model.onnx", verify=False)
        arguments.report.open("a").close()
    except LadeError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        words = f"{arguments.report} can't be written ({error.strerror}); name another --report"
        print(f"gpu_check: {words}", file=sys.stderr)
        return 1
    results = []
    for way in ways:
        results.append(run_apart(way, arguments))
        say(results[-1])
    report = {"machine": machine(), "bundle": str(arguments.bundle), "ways": results}
    arguments.report.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"report: {arguments.report}")
    passed = any("prompts" in found for found in results)
    return 0 if passed and not any("failed" in found for found in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
