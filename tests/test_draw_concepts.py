"""The pictures of docs/concepts.md show what the runtime lays out today."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import draw_concepts
import pytest

from lade_edge.runtime.layout import StepLayout


def check(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["draw_concepts.py", "--check"])
    return draw_concepts.main()


def test_the_pictures_are_those_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(monkeypatch) == 0, "run python tools/draw_concepts.py"


def test_another_mask_makes_them_stale(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arrange = StepLayout.arrange

    def wrong(*arguments: Any) -> Any:
        step = arrange(*arguments)
        visible = step.visible.copy()
        visible[-1, 1] ^= True
        return step._replace(visible=visible)

    monkeypatch.setattr(StepLayout, "arrange", wrong)
    assert check(monkeypatch) == 1
    assert capsys.readouterr().err.count("is stale; run python tools/draw_concepts.py") == 2


def test_other_drawing_makes_them_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Path(draw_concepts.__file__).read_text(encoding="utf-8")
    (tmp_path / "draw_concepts.py").write_text(source + "# changed\n", encoding="utf-8")
    monkeypatch.setattr(draw_concepts, "__file__", str(tmp_path / "draw_concepts.py"))
    assert check(monkeypatch) == 1


def test_pictures_that_are_missing_are_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(draw_concepts, "FOLDER", tmp_path)
    assert check(monkeypatch) == 1


@pytest.mark.parametrize("name", draw_concepts.SCENES)
def test_a_picture_is_drawn_alike_every_time(name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    drawn = draw_concepts.draw(name)
    assert drawn == draw_concepts.draw(name)
    assert b"<dc:date>" not in drawn
    for label in draw_concepts.SCENES[name]().labels:
        assert f">{label}</text>".encode() in drawn or f"  {label}</text>".encode() in drawn


def test_the_path_is_the_one_the_model_chose() -> None:
    scene = draw_concepts.draft_tree()
    assert [scene.labels[slot] for slot in scene.path] == ["on", "the", "sofa"]
