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
    assert list(profile.step_ms) == [32]  # what the capacity leaves
    assert profile.widths == [1, 2, 4, 8]
    assert all(ms > 0 for ms in profile.at(0).values())
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
    f'{{"step_ms": {{"124": {{"1": 1, "2": 1, "3": 1, "4": 1}}}}, "invariant_from": {width}}}'
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
    assert profile.widths == [1, 2, 3, 4]


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
    assert load_profile(engine, identity="a", max_width=16).widths[-1] == 16


def test_a_long_context_is_measured_too() -> None:
    engine = ScriptedEngine(Script(), capacity=4096, max_width=4)
    profile = load_profile(engine, identity="a", max_width=4)
    assert list(profile.step_ms) == [256, 2048]
    assert engine.length == 0


PROFILE = DeviceProfile(
    step_ms={100: {1: 10.0, 2: 11.0, 4: 20.0}, 300: {1: 12.0, 2: 13.0, 4: 30.0}}, invariant_from=2
)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, [10.0, 11.0, 20.0]),
        (100, [10.0, 11.0, 20.0]),
        (200, [11.0, 12.0, 25.0]),
        (500, [14.0, 15.0, 40.0]),
    ],
)
def test_step_times_grow_with_the_context(length: int, expected: list[float]) -> None:
    assert list(PROFILE.at(length).values()) == pytest.approx(expected)


def test_a_machine_that_got_slower_as_a_whole_changes_nothing() -> None:
    steps = {width: [2e-3 * ms] * 9 for width, ms in PROFILE.at(200).items()}
    assert PROFILE.drift(steps, 200) == pytest.approx(2.0)
    corrected = PROFILE.corrected(steps, 200)
    assert corrected.at(200) == pytest.approx(PROFILE.at(200))


def test_a_width_that_got_slower_is_learnt_slowly_and_outliers_do_not_count() -> None:
    steps = {1: [11e-3] * 90, 4: [50e-3] * 10}
    steps[1][3] = 100.0
    drift = (90 * 11 + 10 * 50) / (90 * 11 + 10 * 25)
    corrected = PROFILE.corrected(steps, 200)
    assert corrected.at(200)[4] == pytest.approx(25 * (1 + 0.1 * (2 / drift - 1)))
    assert corrected.at(200)[1] == pytest.approx(11 * (1 + 0.1 * (1 / drift - 1)))
    assert corrected.at(200)[2] == PROFILE.at(200)[2]
    for _ in range(200):
        corrected = corrected.corrected(steps, 200)
    assert corrected.at(200)[4] / corrected.at(200)[1] == pytest.approx(50 / 11, rel=0.01)


def test_few_steps_and_unknown_widths_say_nothing() -> None:
    assert PROFILE.corrected({1: [1.0] * 7, 4: [1.0] * 7, 3: [9.0] * 20}, 100) == PROFILE
    assert PROFILE.corrected({1: [0.0] * 9, 4: [0.0] * 9}, 100) == PROFILE
    assert PROFILE.drift({}, 100) == PROFILE.drift({3: [1.0]}, 100) == 1.0
