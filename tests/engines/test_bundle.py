from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from lade_edge.engines import ManifestError, open_bundle, read_manifest, write_manifest


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_a_folder_gives_the_lowered_graph(bundle: Path) -> None:
    assert open_bundle(bundle).graph.form == "gqa"


def test_a_file_gives_that_graph(bundle: Path) -> None:
    assert open_bundle(bundle / "model.onnx").graph.form == "canonical"


def test_every_file_is_guarded(bundle: Path) -> None:
    names = sorted(p.name for p in bundle.iterdir() if p.name != "lade.json")
    assert names == sorted(read_manifest(bundle).files)
    for name in names:
        path = bundle / name
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        path.write_bytes(changed)
        with pytest.raises(ManifestError, match=f"{name} was changed after export"):
            open_bundle(bundle)
        path.write_bytes(content[:-1])
        with pytest.raises(ManifestError, match=rf"{name} is {len(content) - 1} bytes"):
            open_bundle(bundle)
        path.unlink()
        with pytest.raises(ManifestError, match=f"{name} is missing"):
            open_bundle(bundle)
        path.write_bytes(content)
    open_bundle(bundle)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", "x\\y"])
def test_names_outside_the_folder(bundle: Path, name: str) -> None:
    manifest = read_manifest(bundle)
    entry = next(iter(manifest.files.values()))
    write_manifest(bundle, dataclasses.replace(manifest, files={**manifest.files, name: entry}))
    with pytest.raises(ManifestError, match="outside the bundle"):
        open_bundle(bundle)


def test_a_link_out_of_the_folder(bundle: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (bundle / "config.json").rename(secret)
    (bundle / "config.json").symlink_to(secret)
    with pytest.raises(ManifestError, match="link out of the bundle"):
        open_bundle(bundle)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("absent", "does not exist"),
        (".", r"holds no lade\.json"),
        ("stray.onnx", r"no lade\.json beside it"),
        ("bundle/tokenizer.json", "is not a graph of its bundle"),
    ],
)
def test_paths_that_are_no_bundle(bundle: Path, tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "stray.onnx").write_bytes(b"x")
    with pytest.raises(ManifestError, match=message):
        open_bundle(tmp_path / path)
