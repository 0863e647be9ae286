"""A TensorRT plan's fingerprint, ``NAME.plan.json``: what it was built from, with and for.

A plan runs on the library version and the devices it was built for and on nothing else, and the
library says so late and badly. The fingerprint is read and compared before the plan is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lade_edge.engines.errors import ManifestError
from lade_edge.engines.manifest import (
    FileEntry,
    GraphEntry,
    Manifest,
    ModelSpec,
    Quality,
    parse_record,
)
from lade_edge.engines.self_test import SelfTest

PLAN_SUFFIX = ".plan"
PLAN_SCHEMA = 1
IN_PLACE, ROWS = "in_place", "rows"
KV_ROWS = (
    "kv_rows"  # output of the rows form, (2 L, H_kv, T, D): k and v of layer 0, of layer 1, ...
)
FLAVOURS = ("tensorrt", "tensorrt_rtx")
PRECISIONS = ("fp16", "fp32", "int8", "int4")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBucket:
    """A shape that steps run in. Narrower ones are padded to it.

    Attributes:
        width: Tokens of the step.
        rows: Rows that go through the LM head: ``width`` for steps, 1 for chunks of a prompt.
    """

    width: int
    rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= self.width:
            raise ValueError(f"a bucket has {self.rows} rows of {self.width} tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProfile:
    """An optimisation profile: the shapes that one set of kernels takes.

    Attributes:
        widths: Least, best and most tokens of a step.
        rows: Least, best and most wanted rows.
    """

    widths: tuple[int, ...]
    rows: tuple[int, ...]

    def __post_init__(self) -> None:
        for numbers in (self.widths, self.rows):
            if len(numbers) != 3 or not 1 <= numbers[0] <= numbers[1] <= numbers[2]:
                raise ValueError(f"a profile has {numbers}, expected least, best and most")

    def takes(self, bucket: PlanBucket) -> bool:
        """Whether a bucket's shape lies inside."""
        inside = self.widths[0] <= bucket.width <= self.widths[2]
        return inside and self.rows[0] <= bucket.rows <= self.rows[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """Everything the fingerprint says.

    Attributes:
        name: Name of the model for people.
        lade_version: Version that built the plan.
        source: Where the weights came from.
        flavour: ``tensorrt`` or ``tensorrt_rtx``.
        version: Version of that library.
        compute_capabilities: What it runs on, e.g. ``8.7``; empty is the flavour's portable default.
        forward_compatible: It also runs on later devices than those named, at or above the first.
        version_compatible: Later minor versions of the same major one may run it.
        form: ``in_place`` or ``rows``, see `docs/tensorrt.md`.
        precision: Of the weights: ``fp16``, ``fp32``, ``int8`` or ``int4``; products with integers
            are in fp16.
        capacity: Tokens of prompt and output together.
        slots: ``S``, rows of the KV cache: capacity and the widest step.
        buckets: Shapes that steps run in, narrowest first.
        profiles: Optimisation profiles, as they are numbered in the plan.
        options: Builder options, as they are given on the command line.
        onnx: The canonical graph, as a path from the plan's folder, or the source it was traced from.
        onnx_sha256: Digest of that graph and its weights.
        model: Shape of the model.
        eos_token_ids: Ids that end generation.
        plan: Size and digest of the plan.
        quality: What integers cost, measured before the build; None where there are none.
        self_test: What the graph says to a short prompt; None where it couldn't be run.
        weights: Files beside the plan that its weights are put back from at load, the lowered graph
            first; None where the plan holds them.
    """

    name: str
    lade_version: str
    source: str
    flavour: str
    version: str
    compute_capabilities: tuple[str, ...]
    forward_compatible: bool
    version_compatible: bool
    form: str
    precision: str
    capacity: int
    slots: int
    buckets: tuple[PlanBucket, ...]
    profiles: tuple[PlanProfile, ...]
    onnx: str
    onnx_sha256: str
    model: ModelSpec
    eos_token_ids: tuple[int, ...]
    plan: FileEntry
    options: tuple[str, ...] = field(default=())
    quality: Quality | None = None
    self_test: SelfTest | None = None
    weights: dict[str, FileEntry] | None = None

    def __post_init__(self) -> None:
        if self.flavour not in FLAVOURS or self.form not in (IN_PLACE, ROWS):
            raise ValueError(f"flavour {self.flavour!r} with form {self.form!r} is unknown")
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"precision is {self.precision!r}, expected one of {', '.join(PRECISIONS)}"
            )
        if not self.buckets or not 1 <= self.capacity < self.slots:
            raise ValueError("there is no bucket, or no room for a step beyond the capacity")
        for bucket in self.buckets:
            if not any(profile.takes(bucket) for profile in self.profiles):
                raise ValueError(f"no profile takes steps of {bucket.width} tokens")
        if not any(bucket.rows == bucket.width for bucket in self.buckets):
            raise ValueError("there is no bucket for steps, only such for prompts")
        tested = () if self.self_test is None else (*self.self_test.prompt, *self.self_test.ids)
        for token in tested:
            if not 0 <= token < self.model.vocab_size:
                raise ValueError(f"token {token} is none of {self.model.vocab_size}")

    @property
    def float_type(self) -> str:
        """Numpy name of the type of masks and KV cache."""
        return "float32" if self.precision == "fp32" else "float16"

    @property
    def step_width(self) -> int:
        """The widest step of which every row can be wanted."""
        return max(bucket.width for bucket in self.buckets if bucket.rows == bucket.width)

    def profile_of(self, bucket: PlanBucket) -> int:
        """Number of the narrowest profile that takes the bucket."""
        fitting = [i for i, profile in enumerate(self.profiles) if profile.takes(bucket)]
        return min(fitting, key=lambda index: self.profiles[index].widths[2])

    def graph(self, file: str) -> GraphEntry:
        """The plan as a bundle's graph."""
        return GraphEntry(
            file=file,
            target="tensorrt",
            form=self.form,
            precision=self.precision,
            float_type=self.float_type,
            opset=0,
        )

    def manifest(self, file: str) -> Manifest:
        """What the decode loop and the commands ask of a bundle."""
        return Manifest(
            name=self.name,
            lade_version=self.lade_version,
            source=self.source,
            model=self.model,
            capacity=self.capacity,
            eos_token_ids=self.eos_token_ids,
            graphs=(self.graph(file),),
            files={file: self.plan, **(self.weights or {})},
        )

    def rebuild_command(self, plan: Path) -> str:
        """The command that makes this plan again, on the machine it is to run on."""
        source = self.onnx
        beside = plan.parent / self.onnx
        if (
            self.onnx.endswith(".onnx")
            and not Path(self.onnx).is_absolute()
            and os.path.exists(beside)
        ):
            source = str(beside)
        words = ["lade-export", source, "-o", str(plan), "--capacity", str(self.capacity)]
        return shlex.join([*words, *self.options, "--overwrite"])


def fingerprint_path(plan: Path) -> Path:
    """``llama.plan.json`` of ``llama.plan``."""
    return plan.with_name(f"{plan.name}.json")


def plan_record_text(record: PlanRecord) -> str:
    """The fingerprint as it is stored, with schema version and a digest of its own."""
    content: dict[str, Any] = {"schema": PLAN_SCHEMA, **asdict(record)}
    content["digest"] = _digest(content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_plan_record(plan: Path) -> PlanRecord:
    """Read and check the fingerprint beside a plan.

    Raises:
        ManifestError: If it is missing, damaged or of another schema.
    """
    path = fingerprint_path(plan)
    again = "build the plan again with lade-export"
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        digest = _digest(content) if isinstance(content, dict) else ""
    except FileNotFoundError:
        raise ManifestError(
            f"{plan} has no {path.name} beside it; expected a plan made by lade-export, copied with "
            "its fingerprint"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} can't be read ({error}); {again}") from error
    if not isinstance(content, dict) or content.get("schema") != PLAN_SCHEMA:
        schema = content.get("schema") if isinstance(content, dict) else None
        raise ManifestError(
            f"{path} has schema version {schema!r}, this lade reads {PLAN_SCHEMA}; {again}"
        )
    if content.pop("digest", None) != digest:
        raise ManifestError(f"{path} was changed after the build; {again}")
    del content["schema"]
    try:
        record: PlanRecord = parse_record(PlanRecord, content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is malformed: {error}; {again}") from error
    return record


def _digest(content: dict[str, Any]) -> str:
    body = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
