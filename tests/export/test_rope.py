"""Rope scaling, at positions beyond the original limit or up to it."""

from __future__ import annotations

from typing import Any

import pytest

from lade_edge.engines import CapacityError, ConfigError, ExportError, open_engine
from lade_edge.export import ExportOptions, export_model
from lade_edge.export.support import check_config
from reference_steps import CHAIN, difference, engine_logits, expected_logits, random_step
from tiny_models import VOCAB_SIZE, save_model, tiny_config, tiny_model

ORIGINAL = 32
BEYOND = 80
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "rope_theta": 1000.0,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
    "rope_theta": 1000.0,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.5],
    "long_factor": [4.0, 5.0, 6.0, 7.0],
    "original_max_position_embeddings": ORIGINAL,
    "rope_theta": 1000.0,
}
LIMITS = {"max_position_embeddings": 64, "original_max_position_embeddings": ORIGINAL}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1000.0}


@pytest.mark.parametrize("rope", [LLAMA3, YARN, LINEAR], ids=lambda rope: rope["rope_type"])
def test_beyond_the_original_limit(rope: dict[str, Any], exported: Any) -> None:
    tiny = exported("llama", rope_parameters=rope)
    step = random_step(VOCAB_SIZE, BEYOND, CHAIN)
    expected = expected_logits(tiny.model, step)
    for form in ("canonical", "lowered"):
        assert difference(engine_logits(tiny.engine(form), step), expected) < 1e-5
    assert tiny.operators("canonical")["RotaryEmbedding"] == 4
    plain = tiny_model(tiny_config("llama", rope_parameters={**LINEAR, "factor": 1.0}))
    assert difference(expected_logits(plain, step), expected) > 1e-3  # the scaling is really there


@pytest.mark.parametrize(
    ("family", "changes", "limit"),
    [
        ("phi3", {"rope_parameters": LONGROPE, **LIMITS}, ORIGINAL),
        ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 48}, 48),
    ],
    ids=["longrope", "dynamic"],
)
def test_up_to_the_original_limit(
    family: str, changes: dict[str, Any], limit: int, exported: Any, tmp_path: Any
) -> None:
    tiny = exported(family, **changes)
    bundle = tiny.bundle("lowered")
    assert bundle.manifest.model.max_position == limit
    assert bundle.manifest.capacity == limit
    step = random_step(VOCAB_SIZE, limit - len(CHAIN), CHAIN)
    expected = expected_logits(tiny.model, step)
    for form in ("canonical", "lowered"):
        engine = open_engine(tiny.bundle(form), capacity=limit, max_width=16, threads=1)
        assert difference(engine_logits(engine, step), expected) < 1e-5
    assert tiny.operators("canonical")["RotaryEmbedding"] == 4
    with pytest.raises(CapacityError, match=f"outside 1..{limit}"):
        open_engine(bundle, capacity=limit + 1)
    with pytest.raises(ConfigError, match=f"exceeds the {limit} positions"):
        export_model(
            str(tiny.folder / "model.onnx"), tmp_path / "x", ExportOptions(capacity=limit + 1)
        )


def test_capacity_beyond_the_positions_is_refused(tmp_path: Any) -> None:
    source = save_model(tiny_model(tiny_config("llama")), tmp_path / "source")
    with pytest.raises(ConfigError, match="--capacity 129 exceeds the 128 positions"):
        export_model(str(source), tmp_path / "out", ExportOptions(capacity=129))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_unknown_scaling_is_refused() -> None:
    config = tiny_config("llama")
    config.rope_parameters = {"rope_type": "spiral", "rope_theta": 10.0}
    with pytest.raises(ExportError, match="uses rope scaling 'spiral'; supported are default,"):
        check_config(config)
