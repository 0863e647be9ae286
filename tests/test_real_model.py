"""SmolLM2-135M-Instruct from its weights to text: against transformers, and against itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import RecordingEngine

from lade_edge.runtime import Model, load

pytestmark = pytest.mark.slow

CHAT = (
    "Why is the sky blue? Answer in two sentences.",
    "Translate to French: the cat sat on the mat, and the dog slept beside it.",
    "Repeat these words twice: anchor, bridge, candle, drum.",
)
RAW = (
    "def quicksort(items):\n    ",
    "1, 2, 3, 4, 5, 6,",
    "The",
)
SHAPES = [*itertools.product((0, 1, 5), (2, 4), (1, 5))]


@pytest.fixture(scope="module")
def source(smollm2_gguf: Path) -> Any:
    from lade_edge.export.loader import load_source

    return load_source(str(smollm2_gguf))


@pytest.fixture(scope="module")
def model(smollm2_bundle: Path) -> Model:
    return load(smollm2_bundle)


def greedy(source: Any, ids: list[int], count: int) -> tuple[int, ...]:
    """What transformers' own greedy search gives."""
    source.model.set_attn_implementation("eager")
    prompt = torch.tensor([ids])
    out = source.model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=count, do_sample=False
    )
    return tuple(out[0, len(ids) :].tolist())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("text", "raw"), [*((t, False) for t in CHAT), *((t, True) for t in RAW)])
def test_the_ids_are_those_of_transformers(source: Any, model: Model, text: str, raw: bool) -> None:
    messages = [{"role": "user", "content": text}]
    ids = (
        source.tokenizer(text)["input_ids"]
        if raw
        else source.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    )
    assert model.prompts.encode(text, raw=raw) == ids
    expected = greedy(source, ids, 32)
    for mode in ("plain", "lookahead"):
        result = model.generate(text, raw=raw, mode=mode, max_new_tokens=32)
        assert result.output_ids == expected, mode


def test_every_shape_gives_the_same_ids(model: Model) -> None:
    prompt = "List five colours, then list the same five colours again in reverse order."
    expected = model.generate(prompt, mode="plain", max_new_tokens=32)
    for window, ngram, guesses in SHAPES:
        result = model.generate(
            prompt, window=window, ngram=ngram, guesses=guesses, max_new_tokens=32
        )
        assert result.output_ids == expected.output_ids, (window, ngram, guesses)
        assert result.text == expected.text


def test_drafts_are_accepted(model: Model) -> None:
    """A floor under the acceptance rate: a refactoring that loses drafts gives the same ids."""
    result = model.generate(RAW[1], raw=True, max_new_tokens=64, window=5, ngram=4, guesses=5)
    assert result.stats.tokens_per_step > 1.5


def test_a_one_token_prompt(model: Model) -> None:
    for mode in ("plain", "lookahead"):
        result = model.generate([504], mode=mode, max_new_tokens=24)
        assert result.prompt_tokens == 1
        assert len(result.output_ids) == 24 or result.finish_reason == "eos"
    plain = model.generate([504], mode="plain", max_new_tokens=24)
    assert result.output_ids == plain.output_ids


def test_to_the_last_slot(smollm2_bundle: Path) -> None:
    small = load(smollm2_bundle, capacity=48)
    results = [
        small.generate(RAW[1], raw=True, mode=mode, max_new_tokens=500, ignore_eos=True)
        for mode in ("plain", "lookahead")
    ]
    for result in results:
        assert result.finish_reason == "context"
        assert result.prompt_tokens + len(result.output_ids) == 48
        assert result.output_ids == results[0].output_ids


def test_a_shorter_request_after_a_longer_one(smollm2_bundle: Path, model: Model) -> None:
    requests = ((CHAT[1], 48), (CHAT[2], 24), (CHAT[0], 12))
    in_a_row = [model.generate(text, max_new_tokens=count) for text, count in requests]
    for (text, count), result in zip(requests, in_a_row, strict=True):
        fresh = load(smollm2_bundle).generate(text, max_new_tokens=count)
        assert fresh.output_ids == result.output_ids
        assert fresh.stats.steps == result.stats.steps


def test_int8_loses_next_to_nothing(smollm2_bundle: Path, tmp_path: Path) -> None:
    from lade_edge.export import ExportOptions, export_model

    source = str(smollm2_bundle / "model.onnx")
    options = ExportOptions(precision="int8", slim=True)
    report = export_model(source, tmp_path / "int8", options)
    assert report.manifest.quality is not None
    assert report.manifest.quality.perplexity_ratio <= 1.01
    assert report.manifest.quality.top1_agreement >= 0.95
    assert report.warnings == ()
    model = load(report.folder)
    assert model.profile().invariant_from in (1, 2)
    assert "blue" in model.generate(CHAT[0], max_new_tokens=48).text.lower()


def test_exact_is_plain_at_width_two_bit_for_bit(smollm2_bundle: Path) -> None:
    model = load(smollm2_bundle)
    model.profile()
    engine = RecordingEngine(model.engine)
    model.engine = engine
    for prompt in CHAT:
        runs = []
        for mode in ("plain", "exact"):
            engine.digests.clear()
            result = model.generate(prompt, mode=mode, min_width=2, max_new_tokens=64)
            runs.append((result.output_ids, tuple(engine.digests)))
        assert len(runs[0][1]) == len(result.output_ids) - 1
        assert runs[0] == runs[1]
        assert min(result.stats.widths) >= 2


def test_auto_drafts_pay(model: Model) -> None:
    """A floor under the drafts: what repeats itself is decoded in far fewer steps."""
    result = model.generate(CHAT[2], mode="auto", cost="flat", max_width=16, max_new_tokens=64)
    plain = model.generate(CHAT[2], mode="plain", max_new_tokens=64)
    assert result.output_ids == plain.output_ids
    assert result.stats.tokens_per_step > 1.5


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8},
        {"temperature": 1.2, "top_p": 0.95, "frequency_penalty": 0.2},
        {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
    ],
)
def test_a_seed_gives_the_same_ids_in_every_mode(model: Model, options: dict[str, Any]) -> None:
    expected = model.generate(CHAT[0], mode="plain", seed=1, max_new_tokens=48, **options)
    for mode in ("lookahead", "auto", "exact"):
        found = model.generate(CHAT[0], mode=mode, seed=1, max_new_tokens=48, **options)
        assert found.output_ids == expected.output_ids, mode
