from __future__ import annotations

from pathlib import Path

import pytest

from fakes import Script, ScriptedEngine
from lade_edge.runtime import device_profile
from lade_edge.runtime.device_profile import DeviceProfile, load_profile, measure


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lade"


def test_every_width_is_timed_and_the_engine_left_empty() -> None:
    engine = ScriptedEngine(Script(), capacity=40, max_width=8)
    shares: list[float] = []
    profile = measure(engine, (1, 2, 4, 8), shares.append)
    assert sorted(profile.step_ms) == [1, 2, 4, 8]
    assert all(ms > 0 for ms in profile.step_ms.values())
    assert profile.invariant_from == 1
    assert engine.length == 0
    assert shares[-1] == 1.0
    assert shares == sorted(shares)


def test_a_profile_is_measured_once(cache: Path) -> None:
    engine = ScriptedEngine(Script(), max_width=8)
    first = load_profile(engine, identity="a", max_width=8)
    steps = len(engine.widths)
    assert load_profile(engine, identity="a", max_width=8) == first
    assert len(engine.widths) == steps
    load_profile(engine, identity="another model", max_width=8)
    assert len(engine.widths) == 2 * steps
    assert len(list(cache.iterdir())) == 2


DAMAGED = [
    f'{{"step_ms": {{"1": 1, "2": 1, "3": 1, "4": 1}}, "invariant_from": {width}}}'
    for width in ('"abc"', "[1]", "2.5", "1e400", "1000000")
]


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"step_ms": {"1": "x"}}', "\0\1", '{"step_ms": []}', "[" * 100_000, *DAMAGED],
)
def test_a_damaged_cache_is_measured_again(cache: Path, content: str) -> None:
    engine = ScriptedEngine(Script(), max_width=4)
    load_profile(engine, identity="a", max_width=4)
    (path,) = cache.iterdir()
    path.write_text(content)
    profile = load_profile(engine, identity="a", max_width=4)
    assert sorted(profile.step_ms) == [1, 2, 3, 4]


def test_a_cache_that_cant_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_profile(ScriptedEngine(Script(), max_width=2), identity="a", max_width=2).step_ms


def test_width_invariance_is_told_by_bits() -> None:
    same = {1: [b"x"], 2: [b"a", b"b"], 4: [b"a", b"b", b"c", b"d"]}
    assert device_profile._invariant_from(same) == 2
    assert device_profile._invariant_from(same | {4: [b"a", b"B", b"c", b"d"]}) is None
    assert device_profile._invariant_from({1: [b"a"], 2: [b"a", b"b"]}) == 1


def test_profiles_of_several_widths_are_apart(cache: Path) -> None:
    engine = ScriptedEngine(Script(), max_width=16)
    assert isinstance(load_profile(engine, identity="a", max_width=4), DeviceProfile)
    assert max(load_profile(engine, identity="a", max_width=16).step_ms) == 16
