from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lade_edge.engines import (
    CapacityError,
    ConfigError,
    EngineError,
    StepResult,
    open_bundle,
    open_engine,
)
from lade_edge.engines.ort_binding import StepBinding, StepBuffers
from lade_edge.engines.protocol import Engine

GRAPHS = ["onnxruntime-fp32.onnx", "model.onnx"]


@pytest.fixture(params=GRAPHS)
def engine(request: pytest.FixtureRequest, tiny_bundle: Path) -> Engine:
    return open_engine(open_bundle(tiny_bundle / request.param), capacity=64, max_width=16)


def chain_step(engine: Engine, tokens: np.ndarray) -> StepResult:
    width = len(tokens)
    positions = np.arange(engine.length, engine.length + width)
    return engine.step(tokens, positions, np.tri(width, dtype=bool), np.arange(width))


def all_logits(engine: Engine, count: int) -> np.ndarray:
    rows: np.ndarray = np.stack([engine.logits(row) for row in range(count)])
    return rows


def cache_of(engine: Engine) -> np.ndarray:
    data: np.ndarray = engine._cache.data  # type: ignore[attr-defined]
    return data


TOKENS = np.random.default_rng(3).integers(0, 256, 40)


def test_steps_of_any_width_say_the_same(engine: Engine) -> None:
    engine.prefill(TOKENS[:20])
    chain_step(engine, TOKENS[20:28])
    together = all_logits(engine, 8)
    engine.reset()
    engine.prefill(TOKENS[:20])
    for row in range(8):
        chain_step(engine, TOKENS[20 + row : 21 + row])
        np.testing.assert_allclose(engine.logits(0), together[row], atol=2e-4)
        engine.keep([0])


def test_a_kept_branch_equals_the_same_tokens_in_a_row(engine: Engine) -> None:
    """Slots 0, 3, 4 are kept: two rows have to move."""
    engine.prefill(TOKENS[:20])
    visible = np.eye(5, dtype=bool)
    visible[:, 0] = True
    visible[2, 1] = visible[4, 3] = True
    tokens = np.array([TOKENS[20], 7, 9, TOKENS[21], TOKENS[22]])
    positions = 20 + np.array([0, 1, 2, 1, 2])
    engine.step(tokens, positions, visible, np.arange(5))
    engine.keep([0, 3, 4])
    assert engine.length == 23
    after_tree = chain_step(engine, TOKENS[23:25]).top_logits.copy()
    engine.reset()
    engine.prefill(TOKENS[:23])
    in_a_row = chain_step(engine, TOKENS[23:25]).top_logits
    np.testing.assert_allclose(after_tree, in_a_row, atol=2e-4)


def test_rejected_rows_leave_no_trace(engine: Engine) -> None:
    engine.prefill(TOKENS[:20])
    expected = chain_step(engine, TOKENS[20:24]).top_logits.copy()
    chain_step(engine, np.full(16, 3))
    engine.keep([])
    np.testing.assert_array_equal(chain_step(engine, TOKENS[20:24]).top_logits, expected)


def test_keeping_no_rows_does_nothing(engine: Engine) -> None:
    """With rows to reject, behind a prefill alone, and on an engine that never ran."""
    engine.keep([])
    engine.reset(0)
    assert engine.length == 0
    engine.prefill(TOKENS[:20])
    expected = chain_step(engine, TOKENS[20:24]).top_logits.copy()
    before = cache_of(engine).copy()
    engine.keep([])
    engine.keep([])
    engine.reset(20)
    assert engine.length == 20
    np.testing.assert_array_equal(cache_of(engine), before)
    np.testing.assert_array_equal(chain_step(engine, TOKENS[20:24]).top_logits, expected)


def test_trimming_moves_a_length_and_no_memory(engine: Engine) -> None:
    cache = cache_of(engine)
    address = cache.ctypes.data
    engine.prefill(TOKENS)
    chain_step(engine, TOKENS[:8])
    before = cache.copy()
    engine.keep([0, 1, 2])
    engine.reset(20)
    np.testing.assert_array_equal(cache_of(engine), before)
    chain_step(engine, TOKENS[8:16])
    now = cache_of(engine)
    assert now is cache
    assert now.ctypes.data == address
    rows = np.abs(now - before).max(axis=(0, 1, 3))  # by slot: the step's own are overwritten
    assert (rows[20:28] > 0).all()
    assert not rows[:20].any()
    assert not rows[28:].any()


def test_reset_trims(engine: Engine) -> None:
    engine.prefill(TOKENS[:20])
    expected = chain_step(engine, TOKENS[20:24]).top_logits.copy()
    engine.reset()
    engine.prefill(TOKENS)
    engine.reset(20)
    np.testing.assert_allclose(chain_step(engine, TOKENS[20:24]).top_logits, expected, atol=2e-4)
    with pytest.raises(ValueError, match="can't trim"):
        engine.reset(21)


def test_results_follow_the_wanted_rows(engine: Engine) -> None:
    engine.prefill(TOKENS[:20])
    full = chain_step(engine, TOKENS[20:24])
    ids, logits = full.top_ids.copy(), full.top_logits.copy()
    width = np.tri(4, dtype=bool)
    some = engine.step(TOKENS[20:24], np.arange(20, 24), width, np.array([3, 1]))
    np.testing.assert_array_equal(some.top_ids, ids[[3, 1]])
    np.testing.assert_allclose(some.top_logits, logits[[3, 1]], atol=1e-5)
    row = engine.logits(1)
    assert int(row.argmax()) == some.top_ids[1, 0]
    assert row.shape == (engine.spec.vocab_size,)


def test_the_last_slot_and_the_widest_step(engine: Engine) -> None:
    engine.prefill(np.resize(TOKENS, 64))
    chain_step(engine, np.resize(TOKENS, 16))
    assert engine.length == 64


def test_more_than_fits(engine: Engine) -> None:
    with pytest.raises(CapacityError, match="65 tokens after 0 committed ones don't fit"):
        engine.prefill(np.resize(TOKENS, 65))
    with pytest.raises(CapacityError, match=r"17 tokens is outside 1\.\.16"):
        chain_step(engine, np.resize(TOKENS, 17))


def test_a_long_prompt_is_cut_into_chunks(
    tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lade_edge.engines import ort_engine

    bundle = open_bundle(tiny_bundle)
    whole = open_engine(bundle, capacity=64, max_width=4)
    expected = whole.prefill(TOKENS).top_logits.copy()
    monkeypatch.setattr(ort_engine, "PREFILL_CHUNK", 7)
    pieces = open_engine(bundle, capacity=64, max_width=4)
    np.testing.assert_allclose(pieces.prefill(TOKENS).top_logits, expected, atol=2e-4)
    assert pieces.length == len(TOKENS)


@pytest.mark.parametrize("cut", [1, 9, len(TOKENS) - 1])
def test_a_prompt_gives_the_same_bits_however_it_is_cut(engine: Engine, cut: int) -> None:
    """One token that is left over, after a kept prefix or a chunk, runs as the others do."""
    engine.prefill(TOKENS)
    expected = engine.logits(0).tobytes(), chain_step(engine, TOKENS[:2]).top_logits.tobytes()
    engine.reset()
    engine.prefill(TOKENS[:cut])
    engine.prefill(TOKENS[cut:])
    assert engine.length == len(TOKENS)
    assert engine.logits(0).tobytes() == expected[0]
    assert chain_step(engine, TOKENS[:2]).top_logits.tobytes() == expected[1]


def test_a_prompt_of_one_token_at_the_last_position(tiny_bundle: Path) -> None:
    engine = open_engine(open_bundle(tiny_bundle), capacity=256, max_width=1)
    engine.prefill(np.resize(TOKENS, 256))
    expected = engine.logits(0).tobytes()
    engine.reset(255)
    engine.prefill(np.resize(TOKENS, 256)[255:])
    assert engine.length == 256
    assert engine.logits(0).tobytes() == expected


def test_both_graphs_agree(tiny_bundle: Path) -> None:
    results = []
    for name in GRAPHS:
        engine = open_engine(open_bundle(tiny_bundle / name), capacity=64, max_width=16)
        engine.prefill(TOKENS[:20])
        results.append(chain_step(engine, TOKENS[20:30]).top_logits.copy())
    np.testing.assert_allclose(results[0], results[1], atol=2e-4)


def test_capacity_and_threads_are_checked(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    with pytest.raises(CapacityError, match=r"--capacity 257 is outside 1\.\.256"):
        open_engine(bundle, capacity=257)
    with pytest.raises(ConfigError, match="--threads is 0"):
        open_engine(bundle, threads=0)


def test_a_graph_that_is_no_graph(tiny_bundle: Path, tmp_path: Path) -> None:
    from lade_edge.engines.ort_session import open_session

    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(EngineError, match="can't load"):
        open_session(path)


def test_a_missing_library_is_named(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineError, match=r"pip install 'lade-edge\[cpu\]'"):
        open_engine(open_bundle(tiny_bundle))


def test_another_provider_is_refused(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    monkeypatch.setattr(
        onnxruntime.InferenceSession, "get_providers", lambda self: ["OtherExecutionProvider"]
    )
    with pytest.raises(EngineError, match=r"OtherExecutionProvider.*expected CPUExecutionProvider"):
        open_engine(open_bundle(tiny_bundle))


def test_the_cpu_is_asserted_for_real(engine: Engine) -> None:
    assert engine._session.get_providers() == ["CPUExecutionProvider"]  # type: ignore[attr-defined]


def test_a_shape_is_bound_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a shape that ran before bind nothing, but for the mask where that gets longer."""
    bound: list[str] = []

    def noted(kind: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            bound.append(kind)
            return function(*arguments)

        return call

    monkeypatch.setattr(StepBuffers, "_bind", noted("shape", StepBuffers._bind))
    monkeypatch.setattr(StepBinding, "bind_mask", noted("mask", StepBinding.bind_mask))
    engine.prefill(TOKENS[:20])
    chain_step(engine, TOKENS[20:24])
    assert bound == ["shape", "mask"] * 2
    for _ in range(5):
        chain_step(engine, TOKENS[20:24])
        engine.keep([0, 1])
    assert bound == ["shape", "mask"] * 2
