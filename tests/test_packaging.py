"""The wheel: what is in it, and that it runs in an environment that has never heard of torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from cli_reference import ROOT, project
from packaging.requirements import Requirement

from lade_edge.runtime import load

PACKAGES = ("engines", "export", "runtime")
PROJECT = project()
NOT_OURS = ("torch", "transformers", "onnx", "gguf", "starlette", "matplotlib")


def pip(*arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        env=clean_environment(), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if "connection broken by" in ended.stderr:
        pytest.skip("the package index is out of reach")
    assert ended.returncode == 0, ended.stderr


def clean_environment() -> dict[str, str]:
    """Without what would let Python find this source tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since what an earlier build left beside the sources would get in."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source))
    (found,) = out.iterdir()
    return found


@pytest.fixture(scope="module")
def commands(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the commands of a new environment with the wheel and what ``cpu`` brings."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip("--python", str(python), "install", "--quiet", "--no-compile", f"{wheel}[cpu]")
    return python.parent


def run(commands: Path, name: str, *arguments: str, cache: Path) -> tuple[int, str, str]:
    ended = subprocess.run(
        [str(commands / name), *arguments], cwd=cache, capture_output=True, text=True,
        env=clean_environment() | {"XDG_CACHE_HOME": str(cache)}, timeout=120, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.slow
def test_the_wheel_holds_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {name for name in names if ".dist-info/" not in name}
    kinds = ("*.py", "py.typed", "*.txt", "*.jsonl")
    files = {path for name in PACKAGES for kind in kinds for path in (ROOT / name).rglob(kind)}
    assert found == {f"lade_edge/{path.relative_to(ROOT).as_posix()}" for path in files}
    assert {f"lade_edge/{name}/py.typed" for name in PACKAGES} <= found
    assert {name.partition(".dist-info/")[2] for name in names if name not in found} == {
        "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE",
    }  # fmt: skip


@pytest.mark.slow
def test_the_wheel_says_what_the_project_does(wheel: Path) -> None:
    root = zipfile.Path(wheel)
    (information,) = [path for path in root.iterdir() if path.name.endswith(".dist-info")]
    found = PathDistribution(information)
    assert (found.metadata["Name"], found.version) == (PROJECT["name"], PROJECT["version"])
    assert {point.name: point.value for point in found.entry_points} == PROJECT["scripts"]
    always = [Requirement(text) for text in found.requires or () if "extra ==" not in text]
    assert {one.name for one in always} == {"numpy", "tokenizers", "jinja2", "rich"}


@pytest.mark.slow
def test_the_environment_lacks_what_export_needs(commands: Path, tmp_path: Path) -> None:
    script = f"import importlib.util as u; print([n for n in {NOT_OURS} if u.find_spec(n)])"
    assert run(commands, "python", "-c", script, cache=tmp_path) == (0, "[]\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_it_decodes_in_an_environment_without_torch(
    mode: str, commands: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    words = ["--engine", str(tiny_bundle), "--mode", mode, "--cost", "flat", "-n", "24"]
    code, out, err = run(commands, "lade-run", *words, "--json", "abc abc", cache=tmp_path)
    assert (code, err) == (0, "")
    expected = load(tiny_bundle).generate("abc abc", mode="plain", max_new_tokens=24)
    assert tuple(json.loads(out)["output_ids"]) == expected.output_ids


@pytest.mark.slow
@pytest.mark.parametrize("name", PROJECT["scripts"])
def test_every_command_is_there_and_says_its_version(
    name: str, commands: Path, tmp_path: Path
) -> None:
    expected = f"{name} {PROJECT['version']}\n"
    assert run(commands, name, "--version", cache=tmp_path) == (0, expected, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (["lade-export", "folder"], "pip install 'lade-edge[export,cpu]'"),
        (["lade-serve", "--engine", "folder"], "pip install 'lade-edge[serve]'"),
        (["lade-bench", "--engine", "folder", "--plot", "a.png"], "pip install 'lade-edge[bench]'"),
    ],
)
def test_what_is_not_installed_is_one_sentence(
    command: list[str], advice: str, commands: Path, tmp_path: Path
) -> None:
    code, out, err = run(commands, *command, cache=tmp_path)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert advice in err
