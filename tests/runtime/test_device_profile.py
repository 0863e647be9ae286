from __future__ import annotations

import json
from pathlib import Path

import pytest

from fakes import Script, ScriptedEngine, scripted_model
from lade_edge.runtime import profile_cache, profile_measurement
from lade_edge.runtime.device_profile import DeviceProfile
from lade_edge.runtime.model import Model
from lade_edge.runtime.profile_cache import ProfileCache
from lade_edge.runtime.profile_measurement import measure


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


def measured_model(max_width: int, identity: str = "a") -> Model:
    """A model that measures its step times and keeps them."""
    engine = ScriptedEngine(Script(), max_width=max_width)
    prompts = scripted_model(engine=engine).prompts
    return Model(engine, prompts, eos=frozenset(), identity=identity)


def engine_of(model: Model) -> ScriptedEngine:
    assert isinstance(model.engine, ScriptedEngine)
    return model.engine


def test_a_profile_is_measured_once(cache: Path) -> None:
    model = measured_model(8)
    first = model.profile()
    assert model.profile() is first
    again = measured_model(8)
    assert again.profile() == first
    assert not engine_of(again).widths
    other = measured_model(8, "another model")
    other.profile()
    assert engine_of(other).widths
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
    measured_model(4).profile()
    (path,) = cache.iterdir()
    path.write_text(content)
    model = measured_model(4)
    assert model.profile().widths == [1, 2, 3, 4]
    assert engine_of(model).widths
    assert measured_model(4).profile() == model.profile()


def test_a_cache_that_cant_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    model = measured_model(2)
    assert model.profile().step_ms
    assert model.generate([5], mode="auto", max_new_tokens=40).output_ids


def test_without_a_home_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setattr(profile_cache, "cache_folder", nowhere)
    assert measured_model(2).profile().step_ms


def test_what_moved_is_written_and_read_by_the_next_process(cache: Path) -> None:
    engine = ScriptedEngine(Script(), max_width=4)
    kept = ProfileCache(engine, "a", [1, 2, 4])
    assert kept.read() is None

    def profile(*times: float) -> DeviceProfile:
        return DeviceProfile(
            step_ms={124: dict(zip((1, 2, 4), times, strict=True))}, invariant_from=1
        )

    kept.write(profile(10.0, 11.0, 12.0))
    (path,) = cache.iterdir()
    assert ProfileCache(engine, "a", [1, 2, 4]).read() == profile(10.0, 11.0, 12.0)
    path.unlink()
    kept.write(profile(20.0, 22.2, 24.3))  # twice as slow, the proportions by 1 % others: no news
    assert not path.exists()
    kept.write(profile(10.0, 11.0, 12.7))
    assert ProfileCache(engine, "a", [1, 2, 4]).read() == profile(10.0, 11.0, 12.7)
    assert [file.name for file in cache.iterdir()] == [path.name]


def test_a_generation_corrects_what_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_model(4).profile()
    (path,) = cache.iterdir()
    content = json.loads(path.read_text())
    content["step_ms"]["124"] = {"1": 10.0, "2": 10.1, "3": 10.2, "4": 10.3}  # width all but free
    path.write_text(json.dumps(content))
    model = measured_model(4)
    monkeypatch.setattr(
        ScriptedEngine, "run_s", property(lambda engine: 1e-2 * sum(engine.widths[-1:]))
    )
    model.generate([5], mode="auto", max_new_tokens=100)
    found = json.loads(path.read_text())["step_ms"]["124"]
    assert found["4"] / found["1"] > 1.05


def test_width_invariance_is_told_by_bits() -> None:
    same = {1: [b"x"], 2: [b"a", b"b"], 4: [b"a", b"b", b"c", b"d"]}
    assert profile_measurement._invariant_from(same) == 2
    assert profile_measurement._invariant_from(same | {4: [b"a", b"B", b"c", b"d"]}) is None
    assert profile_measurement._invariant_from({1: [b"a"], 2: [b"a", b"b"]}) == 1


def test_profiles_of_several_widths_are_apart(cache: Path) -> None:
    assert measured_model(4).profile().widths == [1, 2, 3, 4]
    assert measured_model(16).profile().widths[-1] == 16
    assert len(list(cache.iterdir())) == 2


def test_a_long_context_is_measured_too() -> None:
    engine = ScriptedEngine(Script(), capacity=4096, max_width=4)
    profile = measure(engine, (1, 2, 4))
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


def steps_of(times: dict[int, float], *counts: int) -> dict[int, list[float]]:
    """Steps of these milliseconds, in seconds."""
    return {
        width: [1e-3 * ms] * count for (width, ms), count in zip(times.items(), counts, strict=True)
    }


@pytest.mark.parametrize("price", [0.5, 1.5, 2.0])
def test_the_price_of_width_is_learnt_at_once(price: float) -> None:
    """Also from widths that were never measured and for those that didn't run."""
    times = {1: 3 * 11.0, 2: 3 * (11.0 + price), 3: 3 * (11.0 + 7.5 * price)}
    corrected = PROFILE.corrected(steps_of(times, 20, 5, 20), 200)
    for length in (100, 300):
        plain, before = corrected.at(length)[1], PROFILE.at(length)
        found = (corrected.at(length)[4] - plain) / (before[4] - before[1])
        assert abs(found - price) < 0.25 * abs(price - 1) + 0.01
    for _ in range(20):
        corrected = corrected.corrected(steps_of(times, 20, 5, 20), 200)
    expected = [11.0, 11.0 + price, 11.0 + 14 * price]
    assert list(corrected.at(200).values()) == pytest.approx(expected, rel=0.02)


def test_one_generation_moves_the_price_of_width_twofold_at_most() -> None:
    for factor in (0.01, 100.0):
        times = {1: 11.0, 4: 11.0 + 14 * factor}
        corrected = PROFILE.corrected(steps_of(times, 500, 7), 200)
        assert corrected.at(200)[4] - 11 == pytest.approx(14 * (2 if factor > 1 else 0.5))


def test_a_width_that_departs_from_the_rest_is_learnt_slowly() -> None:
    straight = DeviceProfile(step_ms={9: {1: 10.0, 2: 11.0, 3: 12.0, 4: 13.0}}, invariant_from=1)
    steps = steps_of({1: 10.0, 2: 11.0, 3: 15.0, 4: 13.0}, 40, 40, 10, 40)
    corrected = straight.corrected(steps, 9)
    assert 12.1 < corrected.at(9)[3] < 12.6
    for _ in range(100):
        corrected = corrected.corrected(steps, 9)
    found = corrected.at(9)
    assert found[3] / found[1] == pytest.approx(1.5, rel=0.02)
    assert found[4] / found[1] == pytest.approx(1.3, rel=0.02)


def test_outliers_do_not_count() -> None:
    steps = steps_of(PROFILE.at(200), 90, 10, 10)
    steps[1][3] = steps[4][2] = 100.0
    steps[64] = [1.0] * 20  # beyond what was measured: nothing to compare with
    assert PROFILE.corrected(steps, 200).at(200) == pytest.approx(PROFILE.at(200))


def test_few_steps_say_nothing() -> None:
    assert PROFILE.corrected({1: [1.0] * 2, 4: [9.0] * 2}, 100) == PROFILE
    assert PROFILE.corrected({4: [9.0] * 20}, 100) == PROFILE
    assert PROFILE.corrected({1: [0.0] * 9, 4: [0.0] * 9}, 100) == PROFILE
    assert PROFILE.drift({}, 100) == PROFILE.drift({3: [1.0]}, 100) == 1.0
