"""What the documentation says is there, runs, and is what the program prints."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from cli_reference import ROOT, parser_of, project

from fakes import Script, scripted_model
from lade_edge.engines import open_bundle, open_engine
from lade_edge.runtime import Model, load, modes
from reference_steps import CHAIN, TREE, difference, engine_logits, random_step

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPEN = "…"


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    return [body for kind, body in BLOCK.findall(text) if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_readme_leads_to_every_page() -> None:
    found = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {f"docs/{page.name}" for page in PAGES[2:]} <= set(found)


def commands() -> Iterator[tuple[str, list[str]]]:
    for page in PAGES:
        for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
            if kind in ("bash", ""):
                for line in body.splitlines():
                    words = shlex.split(line, comments=True)
                    if words and words[0] in project()["scripts"]:
                        yield page.name, words


@pytest.mark.parametrize(("page", "words"), [*commands()], ids=str)
def test_command_lines_are_ones_the_parsers_take(page: str, words: list[str]) -> None:
    program, *arguments = words
    end = next((at for at, word in enumerate(arguments) if word in ("&", "|", ">")), None)
    parser_of(project()["scripts"][program]).parse_args(arguments[:end])


def sentences() -> list[str]:
    """Every text of the sources, with `OPEN` where something is put in."""
    found = []
    for folder in project_folders():
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = [v.value if isinstance(v, ast.Constant) else OPEN for v in node.values]
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def project_folders() -> list[Path]:
    return [ROOT / name for name in ("engines", "export", "runtime")]


def test_troubleshooting_quotes_what_is_printed() -> None:
    """Quoted sentences, told by the `OPEN` in them, are those of the sources word for word."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]*)` \|", text, re.MULTILINE)
    quoted = [row for row in rows if OPEN in row or len(row.split()) > 6]
    assert len(quoted) > 20
    known = {re.sub(f"{OPEN}+", OPEN, sentence) for sentence in sentences()}
    assert [row for row in quoted if row not in known] == []


def test_the_python_page_runs(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From top to bottom, as a reader would type it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_bundle, tmp_path / "smollm2")
    snippets = blocks("python-api.md", "python")
    assert len(snippets) > 8
    scope: dict[str, Any] = {}
    for snippet in snippets:
        exec(compile(snippet, "python-api.md", "exec"), scope)
    assert scope["first"].output_ids == scope["again"].output_ids
    assert len(scope["scored"]) == 4
    assert (tmp_path / "answers.pool").is_file()


@pytest.fixture(scope="module")
def extensions() -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for snippet in blocks("extending.md", "python"):
        exec(compile(snippet, "extending.md", "exec"), scope)
    return scope


@pytest.mark.parametrize("mode", ["auto", "exact"])
def test_the_source_of_the_extending_page(
    mode: str, extensions: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of another one: its drafts come true where ids count, and change nothing."""

    class Counting(Script):
        def next_token(self, tokens: Any, positions: Any) -> int:
            last = int(tokens[np.argmax(positions)])
            return last + 1 if last % 7 else last + 3

    options: dict[str, Any] = {"max_new_tokens": 60, "cost": "flat", "raw": True}
    expected = scripted_model(Counting()).generate("\x01", mode="plain", **options)
    monkeypatch.setattr(modes, "SuccessorSource", extensions["CountingSource"])
    found = scripted_model(Counting()).generate("\x01", mode=mode, **options)
    assert found.output_ids == expected.output_ids
    assert found.stats.accepted["counting"] > 20


@pytest.mark.parametrize(
    "options",
    [{"mode": "plain"}, {"mode": "lookahead"}, {"mode": "auto", "cost": "flat", "max_width": 8}],
)
def test_the_engine_of_the_extending_page(
    options: dict[str, Any], extensions: dict[str, Any], tiny_bundle: Path
) -> None:
    bundle = open_bundle(tiny_bundle / "model.onnx")
    model = load(tiny_bundle, threads=1)
    engine = extensions["ReferenceEngine"](bundle, capacity=100, max_width=16)
    other = Model(engine, model.prompts, eos=frozenset())
    expected = model.generate("abc abc", mode="plain", max_new_tokens=24, ignore_eos=True)
    found = other.generate("abc abc", max_new_tokens=24, **options)
    assert found.output_ids == expected.output_ids
    for parents in (CHAIN, TREE):
        step = random_step(256, 21, parents)
        mine, theirs = (engine_logits(one, step) for one in (engine, model.engine))
        assert difference(mine, theirs) < 1e-5
        for one in (engine, model.engine):
            one.reset()


def test_the_lowering_of_the_extending_page(
    extensions: dict[str, Any], tiny_bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundle, tmp_path, dirs_exist_ok=True)
    bundle = open_bundle(tmp_path / "model.onnx")
    graph = ir.load(bundle.graph_path)
    extensions["lower_for_plain_operators"](graph, bundle.manifest.model)
    assert "RMSNormalization" not in {node.op_type for node in graph.graph}
    step = random_step(256, 21, TREE)
    before = engine_logits(open_engine(bundle, capacity=100, max_width=16), step)
    ir.save(graph, bundle.graph_path, external_data="other.data")
    after = engine_logits(open_engine(bundle, capacity=100, max_width=16), step)
    assert 0 < difference(after, before) < 1e-5
