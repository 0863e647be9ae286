"""Can this machine run that plan? Answered from the fingerprint, before anything is deserialised."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from lade_edge.engines.bundle import Bundle, describe_file
from lade_edge.engines.errors import CapacityError, EngineError, ManifestError
from lade_edge.engines.manifest import MANIFEST_NAME, read_manifest
from lade_edge.engines.plan import PlanRecord, read_plan_record
from lade_edge.engines.tensorrt_library import PACKAGES

_AMPERE = (8, 0)


def open_plan(path: Path, *, verify: bool = True) -> Bundle:
    """A plan and its fingerprint as a bundle of one graph.

    Args:
        path: The plan.
        verify: Compare its sha256 with the fingerprint.

    Raises:
        ManifestError: If the fingerprint is missing or damaged, or the plan is another file.
    """
    record = read_plan_record(path)
    size_bytes = path.stat().st_size
    if size_bytes != record.plan.size_bytes:
        raise ManifestError(
            f"{path} is {size_bytes} bytes, its fingerprint says {record.plan.size_bytes}; copy both "
            f"again or build it again: {record.rebuild_command(path)}"
        )
    if verify and describe_file(path) != record.plan:
        raise ManifestError(
            f"{path} was changed after the build (sha256 differs from its fingerprint); copy it "
            f"again or build it again: {record.rebuild_command(path)}"
        )
    _check_weights(record, path, verify=verify)
    _check_graph(record, path)
    manifest = record.manifest(path.name)
    return Bundle(folder=path.parent, manifest=manifest, graph=manifest.graphs[0])


def _check_weights(record: PlanRecord, plan: Path, *, verify: bool) -> None:
    """A stripped plan needs the files its weights are put back from."""
    for name, entry in (record.weights or {}).items():
        path = plan.parent / Path(name).name
        if not os.path.isfile(path):
            raise ManifestError(
                f"{plan} was built with --strip-weights and {path.name} is missing beside it; copy it "
                "from where the plan was built, or build the plan again: "
                f"{record.rebuild_command(plan)}"
            )
        size_bytes = path.stat().st_size
        if size_bytes != entry.size_bytes or (verify and describe_file(path) != entry):
            raise ManifestError(
                f"{path} doesn't hold the weights of {plan.name} (its fingerprint has another size or "
                f"sha256); copy it again or build the plan again: {record.rebuild_command(plan)}"
            )


def _check_graph(record: PlanRecord, plan: Path) -> None:
    """A plan beside another graph than its own is an old one; the graph's manifest says which it is."""
    if Path(record.onnx).is_absolute() or not record.onnx.endswith(".onnx"):
        return
    graph = plan.parent / record.onnx
    if not os.path.isfile(graph.parent / MANIFEST_NAME):
        return
    manifest = read_manifest(graph.parent)
    entry = next((entry for entry in manifest.graphs if entry.file == graph.name), None)
    if entry is None:
        return
    bundle = Bundle(folder=graph.parent, manifest=manifest, graph=entry)
    if graph_digest(bundle) != record.onnx_sha256:
        raise ManifestError(
            f"{plan} was built from another {graph.name} than lies beside it; build it again: "
            f"{record.rebuild_command(plan)}"
        )


def graph_digest(bundle: Bundle) -> str:
    """One sha256 over those of a graph and its weights."""
    return hashlib.sha256(bundle.identity.encode()).hexdigest()


def check_capacity(record: PlanRecord, plan: Path, capacity: int | None) -> int:
    """The capacity to run with: the one asked for, or the plan's.

    Raises:
        CapacityError: If the plan was built for less.
    """
    asked = record.capacity if capacity is None else capacity
    if asked < 1:
        raise CapacityError(f"--capacity is {asked}, expected 1 to {record.capacity}")
    if asked > record.capacity:
        command = record.rebuild_command(plan).replace(
            f"--capacity {record.capacity}", f"--capacity {asked}"
        )
        raise CapacityError(
            f"--capacity {asked} is outside 1..{record.capacity}, what {plan.name} was built for; "
            f"build it again for more: {command}"
        )
    return asked


def check_version(record: PlanRecord, plan: Path, version: str) -> None:
    """Refuse a plan of another version of the library.

    Raises:
        EngineError: With both versions and the command that builds the plan again.
    """
    if record.version == version:
        return
    built, here = _numbers(record.version), _numbers(version)
    if record.version_compatible and built[:1] == here[:1] and here >= built:
        return
    title = PACKAGES[record.flavour]
    raise EngineError(
        f"{plan} was built with {title} {record.version}, this machine has {version}; build it again "
        f"here: {record.rebuild_command(plan)}"
    )


def check_device(record: PlanRecord, plan: Path, compute_capability: str) -> None:
    """Refuse a plan for other devices.

    Raises:
        EngineError: With what it was built for and the command that builds it again.
    """
    here = _numbers(compute_capability)
    if compute_capability in record.compute_capabilities:
        return
    portable = record.forward_compatible or not record.compute_capabilities
    if portable and here >= _AMPERE:
        return
    built = " and ".join(record.compute_capabilities) or "8.0 and later"
    command = record.rebuild_command(plan)
    if record.flavour == "tensorrt_rtx":
        command = command.replace(
            "--overwrite", f"--device sm{''.join(map(str, here))} --overwrite"
        )
    raise EngineError(
        f"{plan} was built for compute capability {built}, this device has {compute_capability}; "
        f"build it again here: {command}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
