"""A bundle folder on disk: found from a path, checked against its manifest."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lade_edge.engines.errors import ManifestError
from lade_edge.engines.manifest import (
    MANIFEST_NAME,
    FileEntry,
    GraphEntry,
    Manifest,
    read_manifest,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose files are as its manifest says.

    Attributes:
        folder: The bundle folder.
        manifest: Its manifest.
        graph: The graph to run.
    """

    folder: Path
    manifest: Manifest
    graph: GraphEntry

    @property
    def graph_path(self) -> Path:
        """Path of the graph file."""
        return self.folder / self.graph.file

    @property
    def identity(self) -> str:
        """The graph and its weights: digests of their files."""
        names = (self.graph.file, f"{self.graph.file}.data")
        files = self.manifest.files
        return " ".join(files[name].sha256 for name in names if name in files)

    @property
    def weight_bytes(self) -> int:
        """Size of the graph with its weights."""
        names = (self.graph.file, f"{self.graph.file}.data")
        return sum(
            self.manifest.files[name].size_bytes for name in names if name in self.manifest.files
        )


def open_bundle(path: str | Path, *, verify: bool = True) -> Bundle:
    """Find the bundle that ``path`` names and check every file in it.

    Args:
        path: A bundle folder (its preferred graph is taken), a graph file inside one, or a TensorRT
            plan with its fingerprint.
        verify: Compare the sha256 of every file with the manifest.

    Raises:
        ManifestError: If nothing is there, it is no bundle, or a file is missing or changed.
    """
    path = Path(path)
    try:
        exists = path.exists()
    except OSError as error:  # a name too long, say
        raise ManifestError(f"{path} can't be looked at ({error.strerror})") from error
    if not exists:
        raise ManifestError(f"{path} does not exist; expected a bundle folder or a graph in one")
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".plan" and path.is_file():
        from lade_edge.engines.plan_check import open_plan

        return open_plan(path, verify=verify)
    if path.is_file() and not (folder / MANIFEST_NAME).exists():
        raise ManifestError(
            f"{path} has no {MANIFEST_NAME} beside it; expected a graph in a bundle made by "
            "lade-export"
        )
    manifest = read_manifest(folder)
    graph = _choose_graph(manifest, None if path.is_dir() else path)
    for name in manifest.files:
        _refuse_outside(name, folder)
    _check_sizes(folder, manifest)
    if verify:
        _check_digests(folder, manifest)
    return Bundle(folder=folder, manifest=manifest, graph=graph)


def describe_file(path: Path) -> FileEntry:
    """Size and sha256 of ``path``, read in blocks."""
    with path.open("rb") as stream:
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
        return FileEntry(size_bytes=stream.tell(), sha256=digest.hexdigest())


def _choose_graph(manifest: Manifest, path: Path | None) -> GraphEntry:
    known = [graph.file for graph in manifest.graphs]
    for graph in manifest.graphs:
        if path is None or path.name == graph.file:
            if graph.file not in manifest.files:
                break
            return graph
    if path is None:
        raise ManifestError("lade.json names no graph that can be run; export the model again")
    if path.name in known:
        raise ManifestError(
            f"lade.json names the graph {path.name} and no digest of it; export the model again"
        )
    raise ManifestError(
        f"{path.name} is not a graph of its bundle, which has {', '.join(known) or 'none'}; "
        "name one of these or the folder"
    )


def _refuse_outside(name: str, folder: Path) -> None:
    """A name that leaves the folder, by its parts or through a link, is never followed."""
    pure = PurePosixPath(name)
    inside = folder.resolve()
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name:
        raise ManifestError(f"lade.json names {name!r}, a path outside the bundle; refused")
    try:
        target = (folder / name).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, impossible names
        raise ManifestError(
            f"{name!r} in {folder} leads nowhere; export the model again"
        ) from error
    if not target.is_relative_to(inside):
        raise ManifestError(f"{name!r} in {folder} is a link out of the bundle; refused")


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        path = folder / name
        if not os.path.isfile(path):
            raise ManifestError(f"{path} is missing; copy the whole bundle or export it again")
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes:
            raise ManifestError(
                f"{path} is {size_bytes} bytes, lade.json says {entry.size_bytes}; "
                "copy the bundle again or export it again"
            )


def _check_digests(folder: Path, manifest: Manifest) -> None:
    def differs(item: tuple[str, FileEntry]) -> bool:
        return describe_file(folder / item[0]) != item[1]

    largest_first = sorted(manifest.files.items(), key=lambda item: -item[1].size_bytes)
    try:
        with ThreadPoolExecutor(max_workers=4) as pool:
            changed = [
                i[0]
                for i, bad in zip(largest_first, pool.map(differs, largest_first), strict=True)
                if bad
            ]
    except OSError as error:
        raise ManifestError(f"{folder} can't be read: {error}") from error
    if changed:
        raise ManifestError(
            f"{folder / min(changed)} was changed after export (sha256 differs from lade.json); "
            "copy the bundle again or export it again"
        )
