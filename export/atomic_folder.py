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

from lade_edge.engines import ConfigError, ExportError, ManifestError, read_manifest
from lade_edge.engines.manifest import MANIFEST_NAME

_OLD = "-old"
_MAX_PID_DIGITS = 9


@contextlib.contextmanager
def atomic_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a fresh folder; on success it becomes ``out``, on any error it is removed.

    Args:
        out: Where the folder is to appear.
        overwrite: Replace the bundle is there; it stays untouched until the new folder is complete.

    Raises:
        ConfigError: If ``out`` exists and isn't to be replaced.
        ExportError: If the disk is full or the place can't be written.
    """
    refuse_existing(out, overwrite=overwrite)
    out = Path(os.path.realpath(out))  # a link keeps pointing at the place
    with partial_folder(out) as work:
        yield work
        _sync(work)
        refuse_existing(out, overwrite=overwrite)  # it may have appeared meanwhile
        _put_in_place(work, out)


@contextlib.contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """A hidden folder on the file system of ``out``, gone afterwards unless it was renamed.

    What exports to this place that died have left is removed first.

    Args:
        out: The file or folder that is being made.

    Raises:
        ExportError: If the disk is full or the place can't be written.
    """
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
    except OSError as error:
        raise ExportError(
            f"writing {out} failed: {error.strerror or error}; nothing was changed there"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def refuse_existing(out: Path, *, overwrite: bool) -> None:
    """Refuse a place that is taken, before any work is done.

    Raises:
        ConfigError: If ``out`` exists and isn't to be replaced, or holds what no export made.
    """
    try:
        if not out.exists():
            return
        names = sorted(p.name for p in out.iterdir()) if out.is_dir() else None
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{out} can't be looked at ({error}); choose another -o") from error
    if not overwrite:
        raise ConfigError(f"{out} exists already; choose another -o or add --overwrite")
    if names is None or (names and MANIFEST_NAME not in names):
        raise ConfigError(f"{out} is no bundle, so --overwrite won't replace it; choose another -o")
    if names:
        try:
            own = {MANIFEST_NAME, *read_manifest(out).files}
        except ManifestError:
            own = set(names)  # a damaged bundle is there to be replaced
        if others := [name for name in names if name not in own]:
            raise ConfigError(
                f"{out} holds {others[0]}, which no export made, so --overwrite won't replace the "
                "folder; move it away or choose another -o"
            )


def _prefix(out: Path) -> str:
    return f".{out.name}.partial-"


def _remove_abandoned(out: Path) -> None:
    """Clear up after exports to this place that died, giving back a bundle they had moved aside."""
    for folder in list(out.parent.iterdir()):
        if not folder.name.startswith(_prefix(out)):
            continue
        rest = folder.name.removeprefix(_prefix(out))
        pid = rest.removesuffix(_OLD)
        if not pid.isdecimal() or len(pid) > _MAX_PID_DIGITS:
            continue
        if int(pid) != os.getpid() and _is_running(int(pid)):
            continue
        if rest.endswith(_OLD) and not out.exists():
            folder.rename(out)
        else:
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
    if not out.exists():
        work.rename(out)
        return
    old = work.with_name(f"{work.name}{_OLD}")
    out.rename(old)
    try:
        work.rename(out)
    except BaseException:
        if not out.exists():
            old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
