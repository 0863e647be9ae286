"""The manifest of a bundle, ``lade.json``: what the folder holds and what an engine must know.

Invariants: a manifest in memory is complete and of types as annotated; ``read_manifest`` refuses
everything else with one sentence. The file carries its own digest, so a changed byte in it is
noticed like one in any other file.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np

from lade_edge.engines.errors import ManifestError

MANIFEST_NAME = "lade.json"
SCHEMA_VERSION = 1
FORMS = ("canonical", "gqa", "in_place", "rows")
FLOAT_TYPES = ("float32", "float16")
CACHE_TYPES = (None, "int8")
_LARGEST = 2**31 - 1
_MOST_LAYERS = 4096
_LARGEST_FLOAT = 1e300


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of the model, in the terms of the graph contract.

    Attributes:
        architecture: Class name in the source, e.g. ``LlamaForCausalLM``.
        model_type: Family name, e.g. ``llama``.
        vocab_size: Columns of ``logits``.
        num_layers: Layers that own a KV cache.
        num_kv_heads: ``H_kv``.
        head_size: ``D``.
        max_position: Positions the model was made for (rope or learned table).
        sliding_window: Width in tokens of the layers with a windowed mask, or None.
        top_k: Columns of ``top_ids``.
    """

    architecture: str
    model_type: str
    vocab_size: int
    num_layers: int
    num_kv_heads: int
    head_size: int
    max_position: int
    sliding_window: int | None
    top_k: int

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "num_kv_heads", "head_size", "max_position"):
            value = getattr(self, name)
            most = _MOST_LAYERS if name == "num_layers" else _LARGEST
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}, expected 1 to {most}")
        if not 1 <= self.top_k <= min(self.vocab_size, 1024):
            raise ValueError(f"top_k is {self.top_k}, expected 1 to 1024 and at most vocab_size")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ValueError(f"sliding_window is {self.sliding_window}, expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEntry:
    """One runnable graph of the bundle.

    Attributes:
        file: Graph file, in the bundle folder.
        target: What it was lowered for: ``canonical`` or ``onnxruntime``.
        form: Tensor contract: ``canonical`` (mask over all S slots, ``write_index``) or ``gqa``
            (mask over the used slots, ``seqlens_k`` and ``total_length``); those of a TensorRT plan
            are ``in_place`` and ``rows``.
        precision: Of the weights: ``fp32``, ``fp16``, ``int8`` or ``int4``.
        float_type: numpy name of the type of masks and KV cache: ``float32`` or ``float16``.
        opset: Stamped opset of the default domain.
        cache_type: ``int8`` where the KV cache is stored in that, None where in ``float_type``.
    """

    file: str
    target: str
    form: str
    precision: str
    float_type: str
    opset: int
    cache_type: str | None = None

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """What the KV cache is stored in."""
        return np.dtype(self.cache_type or self.float_type)

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form is {self.form!r}, expected one of {', '.join(FORMS)}")
        if self.float_type not in FLOAT_TYPES:
            raise ValueError(
                f"float_type is {self.float_type!r}, expected one of {', '.join(FLOAT_TYPES)}"
            )
        if self.cache_type not in CACHE_TYPES:
            raise ValueError(f"cache_type is {self.cache_type!r}, expected none or int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """A quantised graph against the float32 graph it was made from, on a text of its own.

    Attributes:
        perplexity_ratio: Perplexity over that of float32; 1 is no loss.
        top1_agreement: Share of positions at which both find the same token best.
        perplexity: Of the quantised graph.
        tokens: Positions compared.
    """

    perplexity_ratio: float
    top1_agreement: float
    perplexity: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and digest of one file.

    Attributes:
        size_bytes: Length of the file.
        sha256: Hex digest of its content.
    """

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything ``lade.json`` says.

    Attributes:
        name: Name of the model for people.
        lade_version: Version that wrote the bundle.
        source: Where the weights came from.
        model: Shape of the model.
        capacity: Default KV slots for prompt + output.
        eos_token_ids: Ids that end generation: union of config, generation config and tokenizer.
        graphs: Runnable graphs, the one to prefer first.
        parity: Largest differences to the reference found at export, per graph file.
        files: Every other file of the bundle.
        quality: What the quantised graph lost; None where none is quantised.
    """

    name: str
    lade_version: str
    source: str
    model: ModelSpec
    capacity: int
    eos_token_ids: tuple[int, ...]
    graphs: tuple[GraphEntry, ...]
    parity: dict[str, dict[str, float]] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)
    quality: Quality | None = None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``lade.json`` with schema version and digest."""
    content: dict[str, Any] = {"schema": SCHEMA_VERSION, **asdict(manifest)}
    content["digest"] = _digest(content)
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``lade.json``.

    Raises:
        ManifestError: If it is missing, not JSON, of another schema version, changed since it was
            written, or not of the expected shape.
    """
    path = folder / MANIFEST_NAME
    try:
        content = json.loads(path.read_bytes().decode("utf-8"))
        digest = _digest(content) if isinstance(content, dict) else ""
    except FileNotFoundError:
        raise ManifestError(
            f"{folder} holds no {MANIFEST_NAME}; expected a bundle made by lade-export"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} can't be read ({error}); export the model again") from error
    if not isinstance(content, dict):
        raise ManifestError(f"{path} is not a JSON object; export the model again")
    schema = content.pop("schema", None)
    if schema != SCHEMA_VERSION:
        raise ManifestError(
            f"{path} has schema version {schema!r}, this lade reads {SCHEMA_VERSION}; "
            "export the model again with this version"
        )
    if content.pop("digest", None) != digest:
        raise ManifestError(f"{path} was changed after export; export the model again")
    try:
        manifest: Manifest = _parse(Manifest, content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ManifestError(f"{path} is malformed: {error}; export the model again") from error
    return manifest


def parse_record(kind: Any, content: dict[str, Any]) -> Any:
    """Build the dataclass ``kind`` from decoded JSON, which must have its fields and no others.

    Raises:
        TypeError: If a value has another type than its field.
        ValueError: If a field is missing, unknown or out of range.
    """
    return _parse(kind, content)


def _digest(content: dict[str, Any]) -> str:
    body = {key: value for key, value in content.items() if key != "digest"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _parse(kind: Any, value: Any, where: str = "") -> Any:
    """Build ``kind`` (dataclass, tuple, dict, union or plain type) from decoded JSON."""
    if hasattr(kind, "__dataclass_fields__"):
        if not isinstance(value, dict):
            raise TypeError(f"{where or 'the file'} is not an object")
        hints = get_type_hints(kind)
        names = [f.name for f in fields(kind)]
        optional = {f.name for f in fields(kind) if f.default is None}
        value = {**dict.fromkeys(optional), **value}
        if missing := [name for name in names if name not in value]:
            raise ValueError(f"{where}{missing[0]} is missing")
        if unknown := [name for name in value if name not in names]:
            raise ValueError(f"{where}{unknown[0]} is not a known field")
        return kind(**{n: _parse(hints[n], value[n], f"{where}{n}.") for n in names})
    origin, arguments = getattr(kind, "__origin__", None), get_args(kind)
    if origin is tuple:
        if not isinstance(value, list):
            raise TypeError(f"{where[:-1]} is not a list")
        return tuple(_parse(arguments[0], item, where) for item in value)
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError(f"{where[:-1]} is not an object")
        return {key: _parse(arguments[1], item, f"{where}{key}.") for key, item in value.items()}
    if arguments:  # X | None
        return None if value is None else _parse(arguments[0], value, where)
    if kind is float and type(value) in (int, float):
        number = float(value) if abs(value) < _LARGEST_FLOAT else math.inf
        if not math.isfinite(number):
            raise ValueError(f"{where[:-1]} is not a finite number")
        return number
    if type(value) is not kind:
        raise TypeError(f"{where[:-1]} is {value!r}, expected {kind.__name__}")
    return value
