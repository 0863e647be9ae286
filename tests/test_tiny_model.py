"""A tiny model from its bundle through the real engine: loading, repeating, every mode, half precision."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lade_edge.runtime import Model, load

PROMPT = "abc abc def abc abc"
MODES: list[dict[str, Any]] = [
    {"mode": "plain"},
    {"mode": "lookahead"},
    {"window": 5, "ngram": 4, "guesses": 5},
    {"mode": "auto", "cost": "flat", "max_width": 16},
    {"mode": "exact", "cost": "flat", "max_width": 16},
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def half_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lade_edge.export import ExportOptions, export_model

    out = tmp_path_factory.mktemp("half") / "bundle"
    return export_model(
        str(tiny_bundle / "model.onnx"), out, ExportOptions(precision="fp16")
    ).folder


def outcome(model: Model, **options: Any) -> tuple[object, ...]:
    result = model.generate(PROMPT, max_new_tokens=40, ignore_eos=True, **options)
    return result.output_ids, result.text, result.stats.steps, result.stats.accepted


@pytest.mark.parametrize("options", MODES)
def test_three_times_the_same_prompt_gives_the_same(
    options: dict[str, Any], tiny_bundle: Path
) -> None:
    model = load(tiny_bundle, threads=1)
    first = outcome(model, **options)
    model.generate("something else in between", max_new_tokens=30, **options)
    assert outcome(model, **options) == first
    assert outcome(model, **options) == first
    assert outcome(load(tiny_bundle, threads=1), **options) == first


@pytest.mark.parametrize("graph", ["model.onnx", "onnxruntime-fp32.onnx"])
def test_every_mode_runs_on_the_same_graph_and_agrees_with_plain(
    graph: str, tiny_bundle: Path
) -> None:
    model = load(tiny_bundle / graph, threads=1)
    plain, *others = [outcome(model, **options) for options in MODES]
    for found in others:
        assert found[:2] == plain[:2]


def test_fifty_fresh_loads_accept_the_same_drafts(tiny_bundle: Path) -> None:
    graph = tiny_bundle / "onnxruntime-fp32.onnx"
    options: dict[str, Any] = {"raw": True, "max_new_tokens": 24, "ignore_eos": True}
    found = set()
    for number in range(50):
        model = load(graph, threads=1, capacity=96, max_width=32)
        shape = MODES[2 + number % 2]
        stats = model.generate("aaaaaaaa", **options, **shape).stats
        accepted, proposed = (tuple(sorted(c.items())) for c in (stats.accepted, stats.proposed))
        found.add((number % 2, stats.steps, accepted, proposed))
        assert sum(stats.accepted.values()) > 0
    assert len(found) == 2


def test_decoding_needs_neither_torch_nor_transformers(tiny_bundle: Path) -> None:
    """Not even lazily: both are made impossible to import."""
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None)\n"
        "from lade_edge.runtime.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "--engine", str(tiny_bundle), "ab", "-n", "9"]
    for options in (["--cost", "flat"], ["--mode", "lookahead", "--temperature", "1"]):
        ended = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 0, ended.stderr


def test_export_pins_the_transformers_it_is_tested_with() -> None:
    """A range with both ends, and the installed version, which the other tests use, inside."""
    import transformers
    from packaging.specifiers import SpecifierSet

    content = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    (pin,) = re.findall(r'^ +"transformers([^"]*)",', content, re.MULTILINE)
    specifiers = SpecifierSet(pin)
    assert {specifier.operator for specifier in specifiers} == {">=", "<"}
    assert specifiers.contains(transformers.__version__)


@pytest.mark.parametrize("graph", ["model.onnx", "onnxruntime-fp16.onnx"])
@pytest.mark.parametrize("options", MODES[1:-1])
def test_in_half_precision_ids_part_from_plain_only_at_a_near_tie(
    graph: str, options: dict[str, Any], half_bundle: Path
) -> None:
    """Where a step's width changes the rounding, another best token may win, but no worse one."""
    model = load(half_bundle / graph, threads=1)
    settings: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
    drafted = model.generate(PROMPT, **settings, **options).output_ids
    plain = model.generate(PROMPT, mode="plain", **settings).output_ids
    prompt = model.prompts.encode(PROMPT)
    for place, (ours, theirs) in enumerate(zip(drafted, plain, strict=True)):
        if ours != theirs:
            model.engine.reset()
            model.engine.prefill(np.array([*prompt, *plain[:place]]))
            row = model.engine.logits(0)
            assert row.max() - row[ours] < 2e-2 * np.abs(row).max()
            break
