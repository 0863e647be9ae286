"""Readers of files and requests: whatever comes is taken or refused in a sentence.

A few dozen inputs of each kind; ``tools/fuzz.py`` throws the same for as long as wanted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import fuzz
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import (
    MANIFEST,
    RECORD,
    TARGETS,
    Deep,
    Target,
    check_manifest,
    check_plan,
    fields_of,
    sign_manifest,
    sign_plan,
)
from lade_edge.engines import manifest, read_manifest


@pytest.mark.parametrize("name", TARGETS)
@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_nothing_but_a_sentence(name: str, tmp_path: Path, data: st.DataObject) -> None:
    TARGETS[name].check(tmp_path, data.draw(TARGETS[name].inputs))


def test_what_is_signed_is_read(tmp_path: Path) -> None:
    """Else the property would hold of everything, all being refused for its digest."""
    content = fields_of(MANIFEST)
    check_manifest(tmp_path, sign_manifest(content))
    assert read_manifest(tmp_path) == MANIFEST
    content["capacity"] = 9
    (tmp_path / manifest.MANIFEST_NAME).write_bytes(sign_manifest(content))
    assert read_manifest(tmp_path).capacity == 9


def test_json_as_deep_as_can_just_be_parsed(tmp_path: Path) -> None:
    """Found by fuzzing: what the parser still took, the digest was too deep for."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 100, limit + 5):
        check_manifest(tmp_path, sign_manifest(fields_of(MANIFEST) | {"model": Deep(depth)}))
        check_plan(tmp_path, sign_plan(fields_of(RECORD) | {"model": Deep(depth)}))


def test_the_tool_counts_what_it_threw_and_ends_at_a_find(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse_five(folder: Path, number: int) -> None:
        assert number != 5

    monkeypatch.setattr(sys, "argv", ["fuzz.py", "--minutes", "0.01"])
    monkeypatch.setattr(fuzz, "TARGETS", {"fine": Target(st.integers(0, 3), refuse_five)})
    assert fuzz.main() == 0
    assert "fine: " in capsys.readouterr().out
    monkeypatch.setattr(fuzz, "TARGETS", {"broken": Target(st.integers(0, 9), refuse_five)})
    with pytest.raises(AssertionError):
        fuzz.main()
