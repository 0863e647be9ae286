"""The exporter as a user meets it: messages, exit status, and nothing half-made left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lade_edge.engines import open_bundle, write_manifest
from lade_edge.export.cli import main
from tiny_source import save_tiny_llama

COMMAND = [sys.executable, "-m", "lade_edge.export.cli"]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the error, progress lines left out."""
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    return lines[-1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent", "absent is not a model; expected a Hugging Face folder"),
        ("absent.gguf", "does not exist; expected a .gguf file"),
        ("absent.onnx", "does not exist; expected a bundle folder or a graph in one"),
        (".", "holds no config.json"),
    ],
)
def test_sources_that_are_none(
    source: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([source, "-o", "out"]) == 1
    assert message in said(capsys)
    assert list(tmp_path.iterdir()) == []


def test_usage_errors_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["x", "--precision", "fp7"], ["x", "--bogus"], ["x", "--capacity", "many"]):
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
    capsys.readouterr()


def test_an_existing_folder_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    assert main(["absent", "-o", str(tmp_path / "mine")]) == 1
    assert "exists already" in said(capsys)
    assert main(["absent", "-o", str(tmp_path / "mine"), "--overwrite"]) == 1
    assert "is no bundle, so --overwrite won't replace it" in said(capsys)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_failed_overwrite_leaves_the_old_bundle(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(tiny_bundle, tmp_path / "out"))
    assert main([str(tmp_path / "absent"), "-o", str(out), "--overwrite"]) == 1
    open_bundle(out)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    capsys.readouterr()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--capacity", "0"], "--capacity is 0, expected at least 1"),
        (["--capacity", "257"], "exceeds the 256 positions this model was made for"),
        (["--slim", "--target", "canonical"], "drop one of them"),
    ],
)
def test_options_that_dont_fit(
    flags: list[str],
    message: str,
    tiny_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(tiny_bundle / "model.onnx"), "-o", str(tmp_path / "out"), *flags]) == 1
    assert message in said(capsys)
    assert list(tmp_path.iterdir()) == []


def test_the_report_names_sizes_and_parity(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny_source), "-o", str(tmp_path / "out"), "--slim"]) == 0
    report = capsys.readouterr().out
    assert "onnxruntime-fp32.onnx  fp32" in report
    assert "parity prefill" in report
    assert "tree" in report
    assert not (tmp_path / "out" / "model.onnx").exists()
    assert open_bundle(tmp_path / "out").graph.form == "gqa"


def test_the_default_capacity_is_bounded_and_its_size_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model of 131,072 positions: 2 layers x K and V x 2 heads x 16 x 4 bytes a slot."""
    source = save_tiny_llama(tmp_path / "long", max_position=131_072)
    assert main([str(source), "-o", str(tmp_path / "out"), "--slim", "--no-check"]) == 0
    assert "KV cache 4096 slots, 2 MB in float32" in capsys.readouterr().out
    assert open_bundle(tmp_path / "out").manifest.capacity == 4096


def test_a_canonical_graph_is_lowered_without_torch(tiny_bundle: Path, tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules.update(torch=None, transformers=None)\n"
        "from lade_edge.export.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    for name, precision in (("a", "fp32"), ("b", "fp16")):
        ended = subprocess.run(
            [sys.executable, "-c", script, str(tiny_bundle / "model.onnx"), "--capacity", "99",
             "-o", name, "--precision", precision],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        assert open_bundle(tmp_path / name).manifest.capacity == 99


def test_only_a_canonical_graph_is_lowered(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tiny_bundle / "onnxruntime-fp32.onnx")
    assert main([source, "-o", str(tmp_path / "out")]) == 1
    assert "only a canonical one in fp32 can be lowered further" in said(capsys)


def test_kill_leaves_nothing_that_loads(tiny_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*COMMAND, str(tiny_source), "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out.partial-*/onnxruntime-fp32.onnx")):
        assert process.poll() is None, "the export ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    assert list(tmp_path.rglob("lade.json")) == []
    assert main([str(tiny_source), "-o", str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_place(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    assert main([str(tiny_source), "-o", str(tmp_path / "out")]) == 1
    assert "can't write to" in said(capsys)


def test_a_place_below_a_file(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([str(tiny_source), "-o", str(tmp_path / "file" / "out")]) == 1
    assert "can't write to" in said(capsys)


def test_what_appears_meanwhile_is_not_replaced(
    tiny_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from lade_edge.export import pipeline

    out = tmp_path / "out"

    def somebody_else_comes_first(folder: Path, manifest: Any) -> None:
        write_manifest(folder, manifest)
        out.mkdir()
        (out / "precious").write_text("mine")

    monkeypatch.setattr(pipeline, "write_manifest", somebody_else_comes_first)
    assert main([str(tiny_bundle / "model.onnx"), "-o", str(out)]) == 1
    assert "exists already" in said(capsys)
    assert (out / "precious").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_overwrite_keeps_what_no_export_made(
    tiny_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Path(shutil.copytree(tiny_bundle, tmp_path / "out"))
    (out / "notes.txt").write_text("mine")
    assert main([str(tiny_bundle / "model.onnx"), "-o", str(out), "--overwrite"]) == 1
    assert "holds notes.txt, which no export made" in said(capsys)
    assert (out / "notes.txt").read_text() == "mine"


def test_overwriting_through_a_link_replaces_its_target(tiny_bundle: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(tiny_bundle, tmp_path / "target"))
    (tmp_path / "link").symlink_to(target)
    source = str(tiny_bundle / "model.onnx")
    assert main([source, "-o", str(tmp_path / "link"), "--overwrite", "--capacity", "77"]) == 0
    assert open_bundle(target).manifest.capacity == 77
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_bundle_moved_aside_by_a_killed_export_comes_back(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_bundle, tmp_path / ".out.partial-999999999-old")
    (tmp_path / ".out.partial-99999999999999999999999").mkdir()  # no process has such a number
    from lade_edge.export.atomic_folder import atomic_folder

    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "out", overwrite=True):
        raise ZeroDivisionError
    open_bundle(tmp_path / "out")
