"""Inputs for the readers of files and requests, and what must hold of each, for tests and tools/fuzz.py.

Each target is a strategy and a check. A check returns if the input was taken, or was refused in one
sentence; anything else it raises is a defect.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from lade_edge.engines import (
    FileEntry,
    GraphEntry,
    LadeError,
    Manifest,
    ManifestError,
    ModelSpec,
    Quality,
    manifest,
    open_bundle,
    plan,
    read_manifest,
)
from lade_edge.engines.plan import PlanBucket, PlanProfile, PlanRecord, read_plan_record
from lade_edge.runtime.serve import requests
from lade_edge.runtime.serve.api_error import ApiError

LIMITS = requests.Limits(model_name="m", default_tokens=7, most_tokens=50)
MESSAGES = [{"role": "user", "content": "x"}]
NAMES = st.sampled_from(
    sorted({*requests._CHAT, *requests._COMPLETION, *requests._REFUSED})
) | st.text(max_size=4)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["user", "text", "auto", "\ud800", "1", 1 << 80, -1, 0, 1])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "1", "x"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=5)
BODY_BYTES = st.binary(max_size=40) | st.text('{}[]",:0e-nul\\ud8', max_size=30).map(str.encode)
PLACES = st.sampled_from(
    ["..", "../x", "/etc/passwd", "a/../../b", "C:\\x", "", ".", "x\x00y", "a" * 300, "model.onnx"]
)

MODEL = ModelSpec(
    architecture="LlamaForCausalLM",
    model_type="llama",
    vocab_size=10,
    num_layers=2,
    num_kv_heads=1,
    head_size=8,
    max_position=64,
    sliding_window=None,
    top_k=8,
)
MANIFEST = Manifest(
    name="näme",
    lade_version="0.1.0",
    source="x.gguf",
    model=MODEL,
    capacity=64,
    eos_token_ids=(2, 5),
    graphs=(
        GraphEntry(
            file="model.onnx",
            target="canonical",
            form="canonical",
            precision="fp32",
            float_type="float32",
            opset=24,
        ),
        GraphEntry(
            file="onnxruntime-int8.onnx",
            target="onnxruntime",
            form="gqa",
            precision="int8",
            float_type="float32",
            opset=21,
            cache_type="int8",
        ),
    ),
    parity={"model.onnx": {"tree": 1e-6}},
    files={"model.onnx": FileEntry(size_bytes=3, sha256="ab")},
    quality=Quality(perplexity_ratio=1.0, top1_agreement=1.0, perplexity=9.0, tokens=3),
)
RECORD = PlanRecord(
    name="näme",
    lade_version="0.1.0",
    source="x.gguf",
    flavour="tensorrt",
    version="10.9.0",
    compute_capabilities=("8.7",),
    forward_compatible=False,
    version_compatible=False,
    form="rows",
    precision="fp16",
    capacity=64,
    slots=128,
    buckets=(PlanBucket(width=1, rows=1), PlanBucket(width=16, rows=1)),
    profiles=(PlanProfile(widths=(1, 8, 16), rows=(1, 1, 1)),),
    onnx="model.onnx",
    onnx_sha256="ab",
    model=MODEL,
    eos_token_ids=(2,),
    plan=FileEntry(size_bytes=3, sha256="ab"),
)
PLAN = "tiny.plan"


class Target(NamedTuple):
    """What to throw at a reader.

    Attributes:
        inputs: Strategy.
        check: Takes an empty folder and an input; raises where a promise is broken.
    """

    inputs: st.SearchStrategy[Any]
    check: Callable[[Path, Any], None]


@st.composite
def mutated(draw: st.DrawFn, original: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with up to three values replaced, left out, renamed, added or nested deeply."""
    found = copy.deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        holders = list(_holders(found))
        holder = draw(st.sampled_from(holders))
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        kind = draw(st.sampled_from(["replace", "place", "drop", "rename", "add", "nest"]))
        if kind == "replace":
            holder[key] = draw(VALUES)
        elif kind == "place":
            holder[key] = draw(PLACES)
        elif kind == "nest":
            depth = draw(st.sampled_from([10, 300, 900, 985, 990, 1500, 20_000]))
            holder[key] = Deep(depth)
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, dict):
            value = holder.pop(key) if kind == "rename" else draw(VALUES)
            holder[draw(PLACES | st.text(max_size=6))] = value
    return found


class Deep(NamedTuple):
    """Stands for so many lists in each other, which can't be made as such."""

    depth: int


def _holders(value: Any) -> Any:
    """Objects and lists that hold something, the outermost first."""
    if isinstance(value, Deep) or not isinstance(value, dict | list) or not value:
        return
    yield value
    for inner in value.values() if isinstance(value, dict) else value:
        yield from _holders(inner)


def text_of(content: dict[str, Any]) -> str:
    """As JSON, with `Deep` spelt out."""

    def write(value: Any) -> str:
        if isinstance(value, Deep):
            return "[" * value.depth + "]" * value.depth
        if isinstance(value, dict):
            parts = (f"{json.dumps(key)}: {write(inner)}" for key, inner in value.items())
            return "{" + ", ".join(parts) + "}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(write, value)) + "]"
        return json.dumps(value)

    return write(content)


def check_manifest(folder: Path, content: bytes) -> None:
    """`read_manifest` gives a manifest or one sentence, and so does opening the bundle."""
    (folder / manifest.MANIFEST_NAME).write_bytes(content)
    (folder / "model.onnx").write_bytes(b"abc")
    try:
        assert isinstance(read_manifest(folder), Manifest)
    except ManifestError as error:
        _is_sentence(str(error))
    try:
        open_bundle(folder)
    except LadeError as error:
        _is_sentence(str(error))


def check_plan(folder: Path, content: bytes) -> None:
    """`read_plan_record` gives a fingerprint or one sentence, and so does opening the plan."""
    path = folder / PLAN
    path.write_bytes(b"abc")
    plan.fingerprint_path(path).write_bytes(content)
    try:
        assert isinstance(read_plan_record(path), PlanRecord)
    except ManifestError as error:
        _is_sentence(str(error))
    try:
        open_bundle(path)
    except LadeError as error:
        _is_sentence(str(error))


def check_body(folder: Path, body: bytes) -> None:
    """`parse_json` gives an object or a 400."""
    try:
        assert isinstance(requests.parse_json(body), dict)
    except ApiError as error:
        assert error.status == 400


def check_request(folder: Path, request: tuple[dict[str, Any], bool, bool]) -> None:
    """A request is taken within its limits or refused in one sentence; no field is ignored.

    Args:
        folder: Not used.
        request: Fields, whether they are a chat's, and whether to add what it can't do without.
    """
    fields, is_chat, whole = request
    if whole:
        fields = {"messages": MESSAGES} | fields if is_chat else {"prompt": "x"} | fields
    parse = requests.parse_chat if is_chat else requests.parse_completion
    try:
        ask = parse(requests.parse_json(json.dumps(fields).encode()), LIMITS)
    except ApiError as error:
        assert error.status in (400, 404)
        message = json.loads(error.body())["error"]["message"]
        assert message and "\n" not in message
    else:
        assert 0 <= ask.config.max_new_tokens <= LIMITS.most_tokens
        known = requests._CHAT | requests._COMPLETION | set(requests._REFUSED)
        ignored = set(fields) - known - requests._FOR_THE_LOG
        assert all(fields[name] is None for name in ignored)


def _is_sentence(text: str) -> None:
    assert text.strip()
    assert "\n" not in text


def signed(schema: int, digest: Callable[[dict[str, Any]], str]) -> Callable[[Any], bytes]:
    """Adds schema version and digest, so that a change gets past them, and writes JSON."""

    def sign(content: dict[str, Any]) -> bytes:
        whole = {"schema": schema, **content}
        text = text_of(whole)
        try:
            whole["digest"] = digest(json.loads(text))
        except (RecursionError, ValueError):
            whole["digest"] = "none can be had"
        return text_of(whole).encode("utf-8", "surrogatepass")

    return sign


def fields_of(record: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(record)))
    return found


sign_manifest = signed(manifest.SCHEMA_VERSION, manifest._digest)
sign_plan = signed(plan.PLAN_SCHEMA, plan._digest)
TARGETS: dict[str, Target] = {
    "manifest bytes": Target(st.binary(max_size=200), check_manifest),
    "manifest fields": Target(mutated(fields_of(MANIFEST)).map(sign_manifest), check_manifest),
    "plan bytes": Target(st.binary(max_size=200), check_plan),
    "plan fields": Target(mutated(fields_of(RECORD)).map(sign_plan), check_plan),
    "request bytes": Target(BODY_BYTES, check_body),
    "request fields": Target(st.tuples(BODIES, st.booleans(), st.booleans()), check_request),
}
