"""The TensorRT adapter over stand-ins that run the lowered graph on ONNX Runtime.

What holds here is our own code: which width, what is padded, what the masks say, which address every
tensor has, what is copied where. Nothing of this ran on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_tensorrt
from fake_tensorrt import ONE_DEVICE, FakeCudaApi, fake_library
from lade_edge.engines import CapacityError, EngineError, open_bundle, open_engine
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.device_cache import Move, moves
from lade_edge.engines.plan import PlanBucket
from lade_edge.engines.protocol import Engine
from lade_edge.engines.step_arena import ALIGNMENT, lay_out
from lade_edge.engines.tensorrt_engine import TensorRTEngine, choose_bucket
from plans import BUCKETS, make_plan
from reference_steps import TREE, engine_logits, random_step

FORMS = ("in_place", "rows")
TOKENS = np.random.default_rng(3).integers(0, 256, 80)


def open_fake(plan: Path, api: FakeCudaApi | None = None, **options: Any) -> TensorRTEngine:
    api = api or FakeCudaApi()
    return TensorRTEngine(
        open_bundle(plan),
        library=fake_library(api),
        driver=lambda: ONE_DEVICE,
        cuda=lambda: CudaRuntime(api),
        **options,
    )


@pytest.fixture(scope="module")
def plans(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    done: dict[tuple[str, str], Path] = {}

    def plan(form: str, precision: str = "fp32") -> Path:
        if (form, precision) not in done:
            folder = tmp_path_factory.mktemp("plan")
            done[form, precision] = make_plan(tiny_bundle / "model.onnx", folder, form, precision)
        return done[form, precision]

    return plan


@pytest.fixture
def reference(tiny_bundle: Path) -> Engine:
    return open_engine(open_bundle(tiny_bundle / "model.onnx"), capacity=100, max_width=16)


def chain_step(engine: Engine, tokens: np.ndarray) -> np.ndarray:
    width = len(tokens)
    positions = np.arange(engine.length, engine.length + width)
    engine.step(tokens, positions, np.tri(width, dtype=bool), np.arange(width))
    return np.stack([engine.logits(row) for row in range(width)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 16])
def test_every_width_says_what_onnxruntime_says(
    form: str, width: int, plans: Any, reference: Engine
) -> None:
    engine = open_fake(plans(form))
    for one in (engine, reference):
        one.prefill(TOKENS[:23])
    got, expected = (chain_step(one, TOKENS[23 : 23 + width]) for one in (engine, reference))
    np.testing.assert_allclose(got, expected, atol=2e-4)
    assert engine.run_s > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_whole_story(form: str, plans: Any, reference: Engine) -> None:
    """Prefill over several chunks, trees, kept branches, rejected rows, trims: step by step equal."""
    engine = open_fake(plans(form))
    rng = np.random.default_rng(1)
    for one in (engine, reference):
        one.prefill(TOKENS[:37])
    for turn in range(14):
        step = random_step(256, engine.length, TREE, seed=turn)
        results = []
        for one in (engine, reference):
            rows = np.arange(len(step.tokens))
            result = one.step(step.tokens, step.positions, step.visible, rows)
            results.append(result.top_logits.copy())
        np.testing.assert_allclose(results[0], results[1], atol=3e-4)
        kept: tuple[int, ...] = ((0, 1, 2, 3), (0, 4, 5), (0,), ())[int(rng.integers(4))]
        for one in (engine, reference):
            one.keep(kept)
        if turn == 9:
            for one in (engine, reference):
                one.reset(33)
        assert engine.length == reference.length


@pytest.mark.parametrize("form", FORMS)
def test_half_precision(form: str, plans: Any, reference: Engine) -> None:
    step = random_step(256, 21, TREE)
    got = engine_logits(open_fake(plans(form, "fp16")), step)
    expected = engine_logits(reference, step)
    assert 1e-6 < np.abs(got - expected).max() / np.abs(expected).max() < 2e-2


@pytest.mark.parametrize("form", FORMS)
def test_graphs_are_captured_once_and_say_the_same(form: str, plans: Any) -> None:
    results = []
    for can_capture in (True, False):
        api = FakeCudaApi(can_capture=can_capture)
        engine = open_fake(plans(form), api)
        engine.prefill(TOKENS[:20])
        results.append(
            np.concatenate([chain_step(engine, TOKENS[20 + i : 24 + i]) for i in range(4)])
        )
        assert api.calls.count("cudaGraphLaunch") == (3 if can_capture else 0)
    np.testing.assert_array_equal(results[0], results[1])


@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_two_copies_and_a_run(form: str, plans: Any) -> None:
    """The inputs go as one block and the best ids come back as one; logits stay on the device."""
    api = FakeCudaApi(can_capture=False)
    engine = open_fake(plans(form), api)
    engine.prefill(TOKENS[:20])
    api.calls.clear()
    engine.step(TOKENS[20:24], np.arange(20, 24), np.tri(4, dtype=bool), np.arange(4))
    assert api.calls == ["cudaMemcpyAsync"] * 2
    engine.keep([0])
    moved = ["cudaMemcpy2DAsync"] if form == "rows" else []
    assert api.calls[2:] == moved


@pytest.mark.parametrize("form", FORMS)
def test_up_to_the_last_slot(form: str, plans: Any, reference: Engine) -> None:
    """A prompt that ends at the capacity, in chunks that must not be padded beyond the cache."""
    engine = open_fake(plans(form))
    tokens = np.resize(TOKENS, 100)
    for one in (engine, reference):
        one.prefill(tokens)
    got, expected = (chain_step(one, TOKENS[:16]) for one in (engine, reference))
    np.testing.assert_allclose(got, expected, atol=2e-4)


def test_too_much_is_refused_with_the_way_out(plans: Any) -> None:
    engine = open_fake(plans("rows"), max_width=12)
    with pytest.raises(CapacityError, match="101 tokens after 0 committed ones don't fit"):
        engine.prefill(np.resize(TOKENS, 101))
    with pytest.raises(
        CapacityError, match=r"13 tokens, the plan's steps are of 1, 2, 4, 8, 16.*--widths"
    ):
        chain_step(engine, TOKENS[:13])
    with pytest.raises(
        CapacityError, match=r"--capacity 101 is outside 1\.\.100.*--capacity 101 --ov"
    ):
        open_fake(plans("rows"), capacity=101)
    with pytest.raises(CapacityError, match=r"KV cache of 128 slots takes .* of device memory"):
        open_fake(plans("rows"), FakeCudaApi(memory_bytes=10_000))
    with pytest.raises(ValueError, match="can't trim"):
        engine.reset(1)


def test_a_plan_that_is_not_what_it_says(plans: Any, tmp_path: Path, tiny_bundle: Path) -> None:
    other = make_plan(tiny_bundle / "model.onnx", tmp_path, "in_place", form="rows")
    with pytest.raises(EngineError, match="tensors don't match its fingerprint"):
        open_fake(other)
    (tmp_path / "lowered.onnx").unlink()
    with pytest.raises(EngineError, match=r"can't load the plan \(magic tag doesn't match\)"):
        open_fake(other)


def test_an_engine_that_copies_its_cache_is_refused(
    plans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_tensorrt import FakeEngine

    monkeypatch.setattr(FakeEngine, "get_aliased_input_tensor", lambda self, name: "")
    with pytest.raises(EngineError, match=r"doesn't update [kv]_cache.\d in place"):
        open_fake(plans("in_place"))


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        ([], []),
        ([0, 1, 2], []),
        ([0, 3], [Move(3, 1, 1)]),
        ([0, 3, 4], [Move(3, 1, 2)]),
        ([1, 2, 3], [Move(1, 0, 1), Move(2, 1, 1), Move(3, 2, 1)]),  # a shift by one overlaps
        ([0, 3, 4, 5, 6], [Move(3, 1, 2), Move(5, 3, 2)]),
        ([0, 2, 5, 6], [Move(2, 1, 1), Move(5, 2, 2)]),
    ],
)
def test_moves_within_the_cache(slots: list[int], expected: list[Move]) -> None:
    assert moves(slots, within=True) == expected


def test_moves_from_elsewhere_are_runs() -> None:
    assert moves([0, 1, 2], within=False) == [Move(0, 0, 3)]
    assert moves([1, 2, 3, 7], within=False) == [Move(1, 0, 3), Move(7, 3, 1)]


@pytest.mark.parametrize(
    ("width", "rows", "room", "chosen"),
    [
        (1, 1, 99, (1, 1)),
        (3, 3, 99, (4, 4)),
        (3, 1, 99, (4, 4)),
        (20, 1, 99, (32, 1)),
        (99, 1, 99, (32, 1)),  # cut into chunks
        (99, 1, 31, (16, 16)),  # the chunk's padding would leave the cache
        (5, 1, 7, (4, 4)),
    ],
)
def test_choice_of_bucket(width: int, rows: int, room: int, chosen: tuple[int, int]) -> None:
    assert choose_bucket(BUCKETS, width, rows, room) == PlanBucket(width=chosen[0], rows=chosen[1])


def test_no_bucket_for_a_step() -> None:
    with pytest.raises(CapacityError, match="17 tokens with 17 wanted rows has no bucket"):
        choose_bucket(BUCKETS, 17, 17, 99, whole=True)


def test_places_are_aligned() -> None:
    places, size = lay_out(
        {"a": ((3,), "int64"), "b": ((1, 1, 5, 129), "float16"), "c": ((1,), "int64")}
    )
    assert [place.offset % ALIGNMENT for place in places.values()] == [0, 0, 0]
    assert places["c"].offset >= places["b"].offset + 5 * 129 * 2
    assert size == places["c"].offset + ALIGNMENT


@pytest.mark.parametrize("form", FORMS)
def test_memory_is_taken_once_and_plainly(form: str, plans: Any) -> None:
    """The stand-in has no asynchronous or pooled allocation; the cache is one block of memory."""

    class Counting(FakeCudaApi):
        def __init__(self) -> None:
            super().__init__()
            self.sizes: list[int] = []

        def cudaMalloc(self, size: int) -> tuple[int, int]:  # noqa: N802
            self.sizes.append(size)
            return super().cudaMalloc(size)

    api = Counting()
    engine = open_fake(plans(form), api)
    model = engine._record.model
    planes = 2 * model.num_layers * model.num_kv_heads
    assert planes * engine._record.slots * model.head_size * 4 in api.sizes
    for _ in range(2):
        taken = len(api.sizes)
        engine.prefill(TOKENS[:20])
        for width in (1, 4, 16):
            chain_step(engine, TOKENS[20 : 20 + width])
        engine.reset()
    assert len(api.sizes) == taken


@pytest.mark.parametrize("form", FORMS)
def test_a_device_out_of_memory_is_told_with_the_ways_out(form: str, plans: Any) -> None:
    with pytest.raises(CapacityError) as caught:
        open_fake(plans(form), FakeCudaApi(memory_bytes=10_000))
    sentence = str(caught.value)
    assert "out of memory (CUDA error 2)" in sentence
    for way in ("lower --capacity", "close other programs", "restart a Jetson whose memory is in"):
        assert way in sentence


@pytest.mark.parametrize("can_capture", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_addresses_are_set_once(
    form: str, can_capture: bool, plans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, count = fake_tensorrt._Context.set_tensor_address, 0

    def counted(self: Any, name: str, address: int) -> bool:
        nonlocal count
        count += 1
        return setting(self, name, address)

    monkeypatch.setattr(fake_tensorrt._Context, "set_tensor_address", counted)
    engine = open_fake(plans(form), FakeCudaApi(can_capture=can_capture))
    engine.prefill(TOKENS[:20])
    chain_step(engine, TOKENS[20:24])
    after_the_first = count
    assert after_the_first > 0
    for _ in range(5):
        chain_step(engine, TOKENS[20:24])
        engine.keep([0, 1])
    assert count == after_the_first
