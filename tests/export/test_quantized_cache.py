"""The KV cache in int8: stored so, a quarter of the memory, trees and trims as ever, refusals."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from lade_edge.engines import ConfigError, EngineError, open_bundle, open_engine
from lade_edge.engines.ort_engine import OnnxRuntimeEngine
from lade_edge.engines.protocol import Engine
from lade_edge.export import ExportOptions, export_model
from lade_edge.export.calibration import largest_in_cache
from lade_edge.export.cli import main
from lade_edge.runtime import load
from tiny_models import VOCAB_SIZE

TOKENS = np.random.default_rng(7).integers(3, VOCAB_SIZE, 40)


@pytest.fixture(scope="module")
def bundles(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny model in int8, by the type of its KV cache."""
    folder = tmp_path_factory.mktemp("cached")
    for kv_cache in ("fp32", "int8"):
        options = ExportOptions(precision="int8", kv_cache=kv_cache, allow_quality_loss=True)
        export_model(str(tiny_bundle / "model.onnx"), folder / kv_cache, options)
    return {kv_cache: folder / kv_cache for kv_cache in ("fp32", "int8")}


@pytest.fixture
def engine(bundles: dict[str, Path]) -> Engine:
    return open_engine(open_bundle(bundles["int8"]), capacity=64, max_width=16)


def cache_of(engine: Engine) -> np.ndarray:
    assert isinstance(engine, OnnxRuntimeEngine)
    data: np.ndarray = engine._cache.data  # type: ignore[union-attr]
    return data


def logits_of_chain(engine: Engine, tokens: np.ndarray) -> np.ndarray:
    width = len(tokens)
    engine.step(
        tokens, engine.length + np.arange(width), np.tri(width, dtype=bool), np.arange(width)
    )
    return np.stack([engine.logits(row).copy() for row in range(width)])


def test_the_manifest_names_it_and_only_the_lowered_graph_has_it(
    bundles: dict[str, Path],
) -> None:
    manifest = open_bundle(bundles["int8"]).manifest
    assert [graph.cache_type for graph in manifest.graphs] == ["int8", None]
    assert [graph.cache_dtype for graph in manifest.graphs] == [np.int8, np.float32]
    graph = ir.load(bundles["int8"] / "onnxruntime-int8.onnx").graph
    caches = [value for value in graph.inputs if value.name and "_cache." in value.name]
    assert len(caches) == 2 * manifest.model.num_layers
    assert {value.dtype for value in caches} == {ir.DataType.INT8}
    assert manifest.quality is not None
    plain = open_bundle(bundles["fp32"]).manifest.quality
    assert plain is not None
    assert manifest.quality.perplexity_ratio == pytest.approx(plain.perplexity_ratio, abs=0.05)
    assert manifest.quality.perplexity != plain.perplexity


def test_a_quarter_of_the_memory(bundles: dict[str, Path]) -> None:
    sizes = {
        kind: cache_of(open_engine(open_bundle(folder), capacity=64)).nbytes
        for kind, folder in bundles.items()
    }
    assert sizes["int8"] * 4 == sizes["fp32"] > 0


def test_scales_hold_keys_at_every_position(tiny_bundle: Path, tmp_path: Path) -> None:
    """Rotation moves a key's length from channel to channel, the further the later it stands."""
    bundle = open_bundle(tiny_bundle)
    file = bundle.graph.file
    for name in (file, f"{file}.data"):
        shutil.copy(tiny_bundle / name, tmp_path / name)
    spec = bundle.manifest.model
    sequences = [TOKENS[start : start + 4] for start in range(0, 40, 4)]
    short, whole = (
        largest_in_cache(tmp_path / file, replace(spec, max_position=positions), sequences)
        for positions in (4, spec.max_position)
    )
    for name, found in whole.items():
        grown = found / short[name]
        assert grown.min() >= 1
        assert (grown.max() > 1.3) if name.startswith("k") else (grown.max() < 1.001)


def test_close_to_a_float_cache_and_used_to_the_full(
    bundles: dict[str, Path], engine: Engine
) -> None:
    float_engine = open_engine(open_bundle(bundles["fp32"]), capacity=64, max_width=16)
    for each in (engine, float_engine):
        each.prefill(TOKENS[:20])
    found, expected = (logits_of_chain(e, TOKENS[20:30]) for e in (engine, float_engine))
    error = np.sqrt(np.square(found - expected).mean() / np.square(expected).mean())
    assert 1e-6 < error < 0.2  # a random model amplifies every difference
    rows = np.abs(cache_of(engine)[:, :, :20].astype(int)).max(axis=(1, 2, 3))
    assert (rows > 60).all()  # a scale that is far too wide would waste the eight bits


def test_a_kept_branch_equals_the_same_tokens_in_a_row(engine: Engine) -> None:
    engine.prefill(TOKENS[:20])
    visible = np.eye(5, dtype=bool)
    visible[:, 0] = True
    visible[2, 1] = visible[4, 3] = True
    tokens = np.array([TOKENS[20], 7, 9, TOKENS[21], TOKENS[22]])
    engine.step(tokens, 20 + np.array([0, 1, 2, 1, 2]), visible, np.arange(5))
    engine.keep([0, 3, 4])
    after_tree = logits_of_chain(engine, TOKENS[23:25])
    engine.reset()
    engine.prefill(TOKENS[:23])
    in_a_row = logits_of_chain(engine, TOKENS[23:25])
    np.testing.assert_allclose(after_tree, in_a_row, atol=0.05 * np.abs(in_a_row).max())


def test_exact_is_plain_bit_for_bit(bundles: dict[str, Path]) -> None:
    model = load(bundles["int8"])
    for prompt in ("ab", "the quick brown fox", "a" * 30):
        plain = model.generate(prompt, mode="plain", min_width=2, max_new_tokens=60)
        assert (
            model.generate(prompt, mode="exact", max_new_tokens=60).output_ids == plain.output_ids
        )
        model.generate(prompt, mode="auto", max_new_tokens=60)
        again = model.generate(prompt, mode="plain", min_width=2, max_new_tokens=60)
        assert again.output_ids == plain.output_ids


@pytest.mark.parametrize("version", ["1.23.2", "1.26.0"])
def test_an_older_library_is_told_from_which_on(
    version: str, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lade_edge.engines import ort_engine

    monkeypatch.setattr(ort_engine, "library_version", lambda: version)
    open_engine(open_bundle(bundles["fp32"]), capacity=64)
    with pytest.raises(EngineError, match=rf"takes from 1\.27 on, {version} is installed"):
        open_engine(open_bundle(bundles["int8"]), capacity=64)


def test_where_it_has_no_meaning(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="--kv-cache int8 is for --precision int8 and int4"):
        ExportOptions(kv_cache="int8")
    with pytest.raises(ConfigError, match="--kv-cache fp8 is unknown; choose fp32 or int8"):
        ExportOptions(kv_cache="fp8", precision="int8")
    source = str(tiny_bundle / "model.onnx")
    plan = ("-o", str(tmp_path / "x.plan"), "--precision", "int8", "--kv-cache", "int8")
    assert main([source, *plan]) == 1
    assert "--kv-cache has no meaning for a TensorRT plan; drop it" in capsys.readouterr().err
