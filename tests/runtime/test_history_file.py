from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from fakes import Script, fallback_tokenizer, scripted_model
from lade_edge.engines import ConfigError
from lade_edge.runtime.drafting import history as history_module
from lade_edge.runtime.drafting.history import DraftHistory
from lade_edge.runtime.drafting.history_file import read_pool, write_pool


def test_a_pool_makes_the_same_request_take_fewer_steps_and_changes_no_token(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pool.json"
    script = Script(surprise=1)
    plain = scripted_model(script).generate("abc", mode="plain", max_new_tokens=60)
    first = scripted_model(script)
    first.open_pool(path)
    before = first.generate("abc", max_new_tokens=60)
    first.save_pool(path)
    second = scripted_model(script)
    second.open_pool(path)
    after = second.generate("abc", max_new_tokens=60)
    assert before.output_ids == after.output_ids == plain.output_ids
    assert after.stats.steps < before.stats.steps
    assert after.stats.accepted["history"] > 0
    assert "history" not in before.stats.accepted


def test_it_survives_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    model = scripted_model()
    model.open_pool(path)
    for prompt in ("abc", "bca"):
        model.generate(prompt, max_new_tokens=40)
    model.save_pool(path)
    tokenizer = model.prompts.tokenizer
    again = read_pool(path, tokenizer, 300)
    assert model._history is not None
    assert again.texts == model._history.texts
    assert again.successors.kept() == model._history.successors.kept()
    write_pool(tmp_path / "copy.json", again, tokenizer)
    assert (tmp_path / "copy.json").read_bytes() == path.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["copy.json", "pool.json"]


def test_a_prompt_of_one_token_leaves_a_pool_that_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    for _ in range(2):
        model = scripted_model()
        model.open_pool(path)
        model.generate([97], max_new_tokens=20)
        model.save_pool(path)
    assert len(read_pool(path, model.prompts.tokenizer, 300).texts) == 2


def test_without_a_pool_nothing_survives_a_request() -> None:
    model = scripted_model(Script(surprise=1))
    runs = [model.generate("abc", max_new_tokens=60, cost="flat").stats.steps for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_cancelled_request_leaves_no_text() -> None:
    model = scripted_model()
    model.open_pool("absent.json")
    stream = model.stream("abc", max_new_tokens=40)
    next(stream)
    stream.close()
    assert model._history is not None
    assert not model._history.texts


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pool.json"
    model = scripted_model()
    model.open_pool(path)
    model.generate("abc", max_new_tokens=10)
    model.save_pool(path)
    before = path.read_bytes()
    other: Tokenizer = fallback_tokenizer()
    with pytest.raises(ConfigError, match=r"another tokenizer.*choose another --pool file"):
        read_pool(path, other, 300)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2},
        {"texts": [[1, -1]]},
        {"texts": [[1, 10**9]]},
        {"texts": [["a"]]},
        {"texts": 3},
        {"successors": {}},
        {"successors": {"1": [], "2": [], "9": []}},
        {"successors": {"1": [[[1, 2], [[3, 0]]]], "2": [], "3": []}},
        {"successors": {"1": [[[1], [[3, 999]]]], "2": [], "3": []}},
        {"successors": {"1": [[[1], [[3, 1.5]]]], "2": [], "3": []}},
        {"successors": []},
    ],
)
def test_a_damaged_pool_is_told(tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "pool.json"
    tokenizer = scripted_model().prompts.tokenizer
    write_pool(path, DraftHistory(), tokenizer)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ConfigError, match="expected a pool file that --pool has written"):
        read_pool(path, tokenizer, 300)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[" * 100_000, b"[]", b"null"])
def test_a_file_that_is_no_pool_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pool.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="expected a pool file that --pool has written"):
        read_pool(path, scripted_model().prompts.tokenizer, 300)


def test_a_place_that_cant_be_written_is_told(tmp_path: Path) -> None:
    tokenizer = scripted_model().prompts.tokenizer
    with pytest.raises(ConfigError, match="can't be written"):
        write_pool(tmp_path / "no folder" / "pool.json", DraftHistory(), tokenizer)
    with pytest.raises(ConfigError, match=f"{tmp_path} is no file; expected a pool file"):
        read_pool(tmp_path, tokenizer, 300)
    with pytest.raises(ConfigError, match="/dev/full is no file; expected a pool file"):
        read_pool(Path("/dev/full"), tokenizer, 300)
    with pytest.raises(ConfigError, match="no folder is no folder; make it"):  # before any work
        read_pool(tmp_path / "no folder" / "pool.json", tokenizer, 300)


def test_the_oldest_texts_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_TOKENS", 40)
    history = DraftHistory()
    for start in range(0, 100, 10):
        history.add(range(start, start + 10))
    assert sum(map(len, history.texts)) <= 40
    assert history.texts[-1][-1] == 99
    source = history.sources()[0]
    assert [token for token, _ in source.propose((97, 98))] == [99]
    assert source.propose((5, 6)) == []
