"""A folder that appears only when it is complete.

It is made under another name beside its place and renamed at the end. A process that dies leaves a
hidden folder without a manifest, which loads nowhere; the next export to the same place removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lade_edge.engines import ConfigError, ExportError


@contextlib.contextmanager
def atomic_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a fresh folder; on success it becomes ``out``, on any error it is removed.

    Args:
        out: Where the folder is to appear.
        overwrite: Replace what is there; it stays untouched until the new folder is complete.

    Raises:
        ConfigError: If ``out`` exists and isn't to be replaced.
        ExportError: If the disk is full or the place can't be written.
    """
    refuse_existing(out, overwrite=overwrite)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(out)
        work = out.parent / f"{_prefix(out)}{os.getpid()}"
        work.mkdir()
    except OSError as error:
        raise ExportError(
            f"can't write to {out.parent}: {error.strerror}; choose another -o"
        ) from error
    try:
        yield work
        _sync(work)
        _put_in_place(work, out)
    except OSError as error:
        raise ExportError(
            f"writing {out} failed: {error.strerror or error}; nothing was changed there"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_existing(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work is done.

    Raises:
        ConfigError: If ``out`` exists and isn't to be replaced, or is no bundle.
    """
    if not out.exists():
        return
    if not overwrite:
        raise ConfigError(f"{out} exists already; choose another -o or add --overwrite")
    if not out.is_dir() or (any(out.iterdir()) and not (out / "lade.json").exists()):
        raise ConfigError(f"{out} is no bundle, so --overwrite won't replace it; choose another -o")


def _prefix(out: Path) -> str:
    return f".{out.name}.partial-"


def _remove_abandoned(out: Path) -> None:
    for folder in out.parent.glob(f"{_prefix(out)}*"):
        pid = folder.name.removeprefix(_prefix(out)).removesuffix("-old")
        if pid.isdigit() and (int(pid) == os.getpid() or not _is_running(int(pid))):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def _put_in_place(work: Path, out: Path) -> None:
    if out.exists():
        old = work.with_name(f"{work.name}-old")
        out.rename(old)
        try:
            work.rename(out)
        except OSError:
            old.rename(out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        work.rename(out)
