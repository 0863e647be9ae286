"""GGUF integers taken as they are: decoded like gguf does, found again, exported without loss."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest

from lade_edge.engines import ExportError, open_bundle, open_engine
from lade_edge.export import ExportOptions, export_model
from lade_edge.export.gguf_blocks import GgufWeights, _decode
from reference_steps import TREE, difference, engine_logits, random_step
from tiny_gguf import save_tiny_gguf

EXACT = {"attn_q": "Q4_1", "attn_k": "Q4_0", "attn_v": "Q8_0", "ffn_down": "Q4_0", "token_embd": "Q8_0",
         "": "Q4_1"}  # fmt: skip


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_blocks_say_what_gguf_reads(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    rng = np.random.default_rng(1)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    columns = 2 * max(block_size, 32)
    data = rng.integers(0, 256, (7, columns // block_size * block_bytes), np.uint8)
    blocks = data.reshape(-1, block_bytes)
    halves = {"Q4_1": (0, 2), "Q4_K": (0, 2), "Q6_K": (208,)}.get(name, (0,))
    for at in halves:  # random bytes make no useful halves
        scale = rng.normal(size=(len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    tensor = SimpleNamespace(tensor_type=kind, data=data, shape=(columns, 7))
    rows = np.array([6, 0, 3])
    found = _decode(tensor, rows)
    expected = gguf.dequantize(data, kind)[rows]
    np.testing.assert_allclose(found.dequantized(), expected, rtol=1e-5, atol=1e-5)


def test_rows_are_found_in_any_order(tmp_path: Path) -> None:
    path = save_tiny_gguf(tmp_path / "tiny.gguf", EXACT)
    tensors = {t.name: t for t in gguf.GGUFReader(path).tensors}
    parts = [tensors[f"blk.1.attn_{part}.weight"] for part in "qkv"]
    matrix = np.concatenate([gguf.dequantize(t.data, t.tensor_type) for t in parts])
    matrix = matrix[np.random.default_rng(0).permutation(len(matrix))]
    weights = GgufWeights(path)
    found = weights.find(matrix)
    assert found is not None
    assert (found.bits, found.block_size) == (8, 32)  # what holds four bits and eight
    np.testing.assert_allclose(found.dequantized(), matrix, rtol=1e-5, atol=1e-6)
    matrix[5, 5] += 0.01
    assert weights.find(matrix) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(range(60)))
    with pytest.raises(ExportError, match=r"bad\.gguf can't be read as GGUF"):
        GgufWeights(path)


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A GGUF file of mixed types and its float32 bundle."""
    root = tmp_path_factory.mktemp("gguf")
    path = save_tiny_gguf(root / "tiny.gguf", EXACT)
    return path, export_model(str(path), root / "fp32").folder


def test_int4_from_gguf_rounds_no_weight(single: tuple[Path, Path], tmp_path: Path) -> None:
    path, folder = single
    options = ExportOptions(precision="int4", slim=True, allow_quality_loss=True)
    report = export_model(str(path), tmp_path / "int4", options)
    assert report.quantized is not None
    assert report.quantized.kept == report.quantized.layers == 9
    engines = [
        open_engine(open_bundle(p), capacity=48, max_width=16, threads=1)
        for p in (folder / "onnxruntime-fp32.onnx", report.folder)
    ]
    step = random_step(256, 21, TREE)
    expected, found = (engine_logits(engine, step) for engine in engines)
    # what is left is the rounding of activations to eight bits in blocks of 32
    assert difference(found, expected) < 0.05


def test_the_same_weights_to_the_last_bits(
    single: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With float activations nothing is left but the order of sums."""
    from lade_edge.export import lower_int4

    monkeypatch.setattr(lower_int4, "ACCURACY_LEVEL", 1)
    path, _ = single
    options = ExportOptions(precision="int4", slim=True)
    report = export_model(str(path), tmp_path / "int4", options)
    quality = report.manifest.quality
    assert quality is not None
    assert quality.perplexity_ratio == pytest.approx(1, abs=1e-4)
    assert quality.top1_agreement > 0.999
    assert report.warnings == ()
