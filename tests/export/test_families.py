"""Every family, canonical and lowered, against transformers, through the real engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lade_edge.engines.masks import MASKED, MaskWriter, StepMask
from reference_steps import (
    CHAIN,
    TREE,
    Step,
    difference,
    engine_logits,
    expected_logits,
    random_step,
    sequence_logits,
)
from tiny_models import FAMILIES, VOCAB_SIZE, WINDOW

TOLERANCE = 1e-5  # of the largest logit, in float32
FAULT = 1e-3  # what the smallest mistake must change
PREFIX = 21  # more than the window
WINDOWED = ("qwen2", "mistral", "phi3", "gemma2", "gemma3_text", "starcoder2", "exaone4")
STEPS = {"single": (-1,), "multi_token": CHAIN, "tree": TREE}


@pytest.mark.parametrize("form", ["canonical", "lowered"])
@pytest.mark.parametrize("family", FAMILIES)
def test_matches_transformers(family: str, form: str, exported: Any) -> None:
    tiny = exported(family)
    engine = tiny.engine(form)
    step = random_step(VOCAB_SIZE, PREFIX, CHAIN)
    engine.reset()
    engine.prefill(step.prefix)
    assert difference(engine.logits(0), sequence_logits(tiny.model, step.prefix)[-1]) < TOLERANCE
    for name, parents in STEPS.items():
        step = random_step(VOCAB_SIZE, PREFIX, parents)
        found = difference(engine_logits(engine, step), expected_logits(tiny.model, step))
        assert found < TOLERANCE, f"{name}: {found:.2g}"


@pytest.mark.parametrize("form", ["canonical", "lowered"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_kept_branch_continues_as_its_own_sequence(family: str, form: str, exported: Any) -> None:
    """Commit the second branch of a tree, which moves its rows, and go on from there."""
    tiny = exported(family)
    engine = tiny.engine(form)
    step = random_step(VOCAB_SIZE, PREFIX, TREE)
    engine_logits(engine, step)
    branch = [0, 4, 5, 6]
    engine.keep(branch)
    tokens = np.concatenate([step.prefix, step.tokens[branch], [9, 10]])
    engine.step(tokens[-2:], np.arange(len(tokens) - 2, len(tokens)), np.tri(2) > 0, np.arange(2))
    got = np.stack([engine.logits(0), engine.logits(1)])
    assert difference(got, sequence_logits(tiny.model, tokens)[-2:]) < TOLERANCE


def _position_off_by_one(step: Step) -> Step:
    positions = step.positions.copy()
    positions[5] += 1
    return replace(step, positions=positions)


def _mask_hole(step: Step) -> Step:
    visible = step.visible.copy()
    visible[6, 4] = False
    return replace(step, visible=visible)


def _wrong_ancestor(step: Step) -> Step:
    visible = step.visible.copy()
    visible[6, 4], visible[6, 1] = False, True
    return replace(step, visible=visible)


@pytest.mark.parametrize("plant", [_position_off_by_one, _mask_hole, _wrong_ancestor])
@pytest.mark.parametrize("family", FAMILIES)
def test_planted_fault_shows(family: str, plant: Any, exported: Any) -> None:
    tiny = exported(family)
    step = random_step(VOCAB_SIZE, PREFIX, TREE)
    got = engine_logits(tiny.engine("lowered"), plant(step))
    assert difference(got, expected_logits(tiny.model, step)) > FAULT


def test_hidden_prefix_slot_shows(exported: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = exported("llama")

    write = StepMask.write

    def with_hole(self: StepMask, length: int, visible: Any, positions: Any) -> None:
        write(self, length, visible, positions)
        self.view(len(visible))[0, 0, 3, length - 4] = MASKED

    step = random_step(VOCAB_SIZE, PREFIX, TREE)
    monkeypatch.setattr(StepMask, "write", with_hole)
    got = engine_logits(tiny.engine("lowered"), step)
    assert difference(got, expected_logits(tiny.model, step)) > FAULT


@pytest.mark.parametrize("family", FAMILIES)
def test_window_is_found(family: str, exported: Any) -> None:
    spec = exported(family).bundle("canonical").manifest.model
    assert spec.sliding_window == (WINDOW if family in WINDOWED else None)


@pytest.mark.parametrize("fault", ["one too wide", "one too narrow", "by slot", "none"])
@pytest.mark.parametrize("family", WINDOWED)
def test_wrong_window_shows(
    family: str, fault: str, exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = exported(family)

    write = MaskWriter.write
    changes = {"one too wide": 1, "one too narrow": -1}

    def wrong(self: MaskWriter, out: Any, length: int, visible: Any, positions: Any) -> None:
        window = self._window
        if window is not None:
            self._window = None if fault == "none" else window + changes.get(fault, 0)
        if fault == "by slot":
            positions = length + np.arange(len(visible))
        write(self, out, length, visible, positions)
        self._window = window

    step = random_step(VOCAB_SIZE, PREFIX, TREE)
    monkeypatch.setattr(MaskWriter, "write", wrong)
    got = engine_logits(tiny.engine("lowered"), step)
    assert difference(got, expected_logits(tiny.model, step)) > FAULT
