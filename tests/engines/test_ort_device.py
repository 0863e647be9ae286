"""ONNX Runtime's GPU providers: loud where they aren't there, and the device path run on host memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_tensorrt import ONE_DEVICE, FakeCudaApi
from lade_edge.engines import (
    ConfigError,
    EngineError,
    open_bundle,
    open_engine,
    ort_device_binding,
    ort_session,
)
from lade_edge.engines.cuda_driver import Driver
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.ort_engine import OnnxRuntimeEngine
from reference_steps import TREE, random_step


def on_device(bundle: Path, api: FakeCudaApi, monkeypatch: pytest.MonkeyPatch) -> OnnxRuntimeEngine:
    """The device path over the CPU provider: addresses, copies and compaction are as on a GPU."""
    monkeypatch.setitem(ort_session.PROVIDERS, "cuda", ("CPUExecutionProvider",))
    monkeypatch.setattr(ort_device_binding, "MEMORY", "cpu")
    return OnnxRuntimeEngine(
        open_bundle(bundle / "model.onnx"),
        capacity=64,
        max_width=16,
        device="cuda",
        driver=lambda: ONE_DEVICE,
        cuda=lambda: CudaRuntime(api),
    )


def test_it_says_what_the_cpu_says(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = FakeCudaApi()
    engines = [
        on_device(tiny_bundle, api, monkeypatch),
        open_engine(open_bundle(tiny_bundle / "model.onnx"), capacity=64, max_width=16),
    ]
    assert engines[0].spec.device == "cuda"
    for engine in engines:
        engine.prefill(np.random.default_rng(3).integers(0, 256, 23))
    for turn, kept in enumerate([(0, 4, 5), (0, 1, 2), (), (0, 4, 5, 6)]):
        step = random_step(256, engines[0].length, TREE, seed=turn)
        rows = np.array([8, 0, 3, 5])
        found = [e.step(step.tokens, step.positions, step.visible, rows) for e in engines]
        np.testing.assert_array_equal(found[0].top_ids, found[1].top_ids)
        np.testing.assert_allclose(found[0].top_logits, found[1].top_logits, atol=1e-5)
        np.testing.assert_allclose(engines[0].logits(2), engines[1].logits(2), atol=1e-5)
        for engine in engines:
            engine.keep(kept)
    assert "cudaMemcpy2DAsync" in api.calls


def test_a_missing_provider(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = open_bundle(tiny_bundle / "model.onnx")
    for device, provider in (("cuda", "CUDA"), ("tensorrt", "Tensorrt")):
        with pytest.raises(EngineError, match=f"has no {provider}ExecutionProvider; install"):
            OnnxRuntimeEngine(bundle, capacity=64, device=device, driver=lambda: ONE_DEVICE)


def test_a_silent_fallback_is_loud(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library does it where CUDA's own libraries are missing: a session, on the CPU."""
    import onnxruntime

    claimed = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: claimed)
    real = onnxruntime.InferenceSession

    def silently(path: str, options: Any, **_: Any) -> Any:
        return real(path, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "InferenceSession", silently)
    with pytest.raises(EngineError, match=r"on \['CPUExecutionProvider'\], expected CUDAExecution"):
        ort_session.open_session(tiny_bundle / "model.onnx", device="cuda")


def test_no_driver_and_no_canonical_graph(tiny_bundle: Path) -> None:
    bundle = open_bundle(tiny_bundle)
    gone = Driver(reason="the NVIDIA driver is there but finds no device")
    with pytest.raises(EngineError, match="takes the canonical graph; the bundle has none"):
        OnnxRuntimeEngine(bundle, capacity=64, device="cuda", driver=lambda: ONE_DEVICE)
    with pytest.raises(
        EngineError, match="--device cuda can't be used: the NVIDIA driver is there"
    ):
        OnnxRuntimeEngine(
            open_bundle(tiny_bundle / "model.onnx"), capacity=64, device="cuda", driver=lambda: gone
        )
    with pytest.raises(ConfigError, match="--device npu is unknown"):
        open_engine(bundle, device="npu")


def test_the_tensorrt_provider_gets_one_profile(tiny_bundle: Path) -> None:
    model = open_bundle(tiny_bundle).manifest.model
    options = ort_device_binding.tensorrt_provider_options(model, widest=256, max_rows=16, slots=80)
    assert options["trt_profile_min_shapes"].startswith(
        "input_ids:1x1,position_ids:1x1,logit_rows:1,"
    )
    assert "attn_mask:1x1x256x80" in options["trt_profile_max_shapes"]
    assert "v_cache.1:1x2x80x16" in options["trt_profile_opt_shapes"]
