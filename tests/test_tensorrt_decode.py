"""Whole generations through a plan, over the stand-in of TensorRT: the same ids as ONNX Runtime gives."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest

from fake_tensorrt import ONE_DEVICE, FakeCudaApi, fake_library
from lade_edge.engines import tensorrt_engine
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.runtime import load
from plans import make_plan

PROMPTS = ("abc abc abc abc", "0123456789" * 3)


@pytest.mark.parametrize("form", ["in_place", "rows"])
@pytest.mark.parametrize(
    "options", [{"mode": "plain"}, {"mode": "lookahead", "window": 3, "ngram": 3}]
)
def test_the_same_ids(
    form: str,
    options: dict[str, Any],
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = FakeCudaApi()
    fake = functools.partial(
        tensorrt_engine.TensorRTEngine,
        library=fake_library(api),
        driver=lambda: ONE_DEVICE,
        cuda=lambda: CudaRuntime(api),
    )
    monkeypatch.setattr(tensorrt_engine, "TensorRTEngine", fake)
    plan = make_plan(tiny_bundle / "model.onnx", tmp_path, form)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tiny_bundle / name, tmp_path / name)
    ours, reference = load(plan), load(tiny_bundle / "model.onnx", capacity=100)
    for prompt in PROMPTS:
        found = ours.generate(prompt, raw=True, max_new_tokens=40, ignore_eos=True, **options)
        expected = reference.generate(
            prompt, raw=True, max_new_tokens=40, ignore_eos=True, mode="plain"
        )
        assert found.output_ids == expected.output_ids
    sampling: dict[str, Any] = {"temperature": 0.9, "seed": 4, "max_new_tokens": 30}
    drawn = ours.generate(PROMPTS[0], raw=True, **sampling, **options)
    expected = reference.generate(PROMPTS[0], raw=True, **sampling, mode="plain")
    assert drawn.output_ids == expected.output_ids
