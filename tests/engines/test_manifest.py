from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzzing import MANIFEST
from lade_edge.engines import (
    Manifest,
    ManifestError,
    read_manifest,
    write_manifest,
)


def example() -> Manifest:
    return dataclasses.replace(MANIFEST, quality=None)


MODEL = dataclasses.asdict(example().model)
GRAPH = dataclasses.asdict(example().graphs[0])


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_manifest(tmp_path, example())
    assert read_manifest(tmp_path) == example()


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"holds no lade\.json"):
        read_manifest(tmp_path)


def test_another_schema_version(tmp_path: Path) -> None:
    write_manifest(tmp_path, example())
    path = tmp_path / "lade.json"
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 7'))
    with pytest.raises(ManifestError, match="schema version 7, this lade reads 1"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("field", ["name", "capacity", "model", "graphs", "files"])
def test_a_missing_or_changed_field(tmp_path: Path, field: str) -> None:
    write_manifest(tmp_path, example())
    path = tmp_path / "lade.json"
    content = json.loads(path.read_text())
    del content[field]
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match="changed after export"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": "64"}, "capacity is '64', expected int"),
        ({"capacity": True}, "capacity is True, expected int"),
        ({"graphs": {}}, "graphs is not a list"),
        ({"graphs": [1]}, "is not an object"),
        ({"files": {"a": {"size_bytes": 1}}}, r"files\.a\.sha256 is missing"),
        ({"more": 1}, "more is not a known field"),
        ({"model": MODEL | {"vocab_size": -1}}, "vocab_size is -1, expected 1 to"),
        ({"model": MODEL | {"top_k": 10**13}}, "top_k is 10000000000000, expected 1 to 1024"),
        ({"graphs": [GRAPH | {"float_type": "f4,f4"}]}, "float_type is 'f4,f4', expected one of"),
        ({"graphs": [GRAPH | {"form": "other"}]}, "form is 'other', expected one of"),
        ({"model": MODEL | {"num_layers": 2**31 - 1}}, "num_layers is 2147483647, expected 1 to"),
        ({"parity": {"a": {"tree": 10**400}}}, "parity.a.tree is not a finite number"),
        ({"parity": {"a": {"tree": float("nan")}}}, "parity.a.tree is not a finite number"),
        ({"parity": {"a": {"tree": "1"}}}, "parity.a.tree is '1', expected float"),
    ],
)
def test_fields_of_the_wrong_shape(tmp_path: Path, change: dict[str, object], message: str) -> None:
    from lade_edge.engines import manifest as module

    write_manifest(tmp_path, example())
    path = tmp_path / "lade.json"
    content = json.loads(path.read_text()) | change
    content["digest"] = module._digest(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ManifestError, match=message):
        read_manifest(tmp_path)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_any_changed_byte_is_noticed(tmp_path: Path, position: int, byte: int) -> None:
    write_manifest(tmp_path, example())
    path = tmp_path / "lade.json"
    content = bytearray(path.read_bytes())
    position %= len(content)
    if content[position] == byte:
        return
    content[position] = byte
    path.write_bytes(content)
    try:
        read = read_manifest(tmp_path)
    except ManifestError:
        return
    assert read == example()  # white space between fields says nothing


def test_deeply_nested_json(tmp_path: Path) -> None:
    (tmp_path / "lade.json").write_text("[" * 200_000)
    with pytest.raises(ManifestError):
        read_manifest(tmp_path)
