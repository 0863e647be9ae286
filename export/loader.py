"""Load a model and its tokenizer from a folder, a hub id or a GGUF file.

Everything comes in float32, whatever the source stores: lowering decides what is kept.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from lade_edge.engines import ExportError


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A loaded model with all that a bundle keeps of it.

    Attributes:
        name: Name for people.
        origin: Where it came from, as the user wrote it, without the folders above.
        model: The model in eval mode, float32.
        tokenizer: Its tokenizer.
        generation_config: Its generation defaults.
    """

    name: str
    origin: str
    model: Any
    tokenizer: Any
    generation_config: Any

    @property
    def config(self) -> Any:
        """The model's text config."""
        return self.model.config.get_text_config()

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Union of the end ids of config, generation config and tokenizer, ascending."""
        found: set[int] = set()
        for holder in (self.model.config, self.config, self.generation_config, self.tokenizer):
            ids = getattr(holder, "eos_token_id", None)
            found |= set(ids) if isinstance(ids, (list, tuple)) else {ids}
        return tuple(sorted(i for i in found if isinstance(i, int) and i >= 0))


def load_source(source: str) -> Source:
    """Load weights and tokenizer.

    Args:
        source: A Hugging Face folder, a hub id, or a ``.gguf`` file.

    Raises:
        ExportError: If nothing is there, or it isn't a causal language model that loads.
    """
    path = Path(source)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ExportError(f"{source} does not exist; expected a .gguf file")
        _check_gguf(path)
        return _load(str(path.parent), path.stem, path.name, gguf_file=path.name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ExportError(
                f"{source} holds no config.json; expected a Hugging Face model folder, a hub id, "
                "a .gguf file or a model.onnx"
            )
        return _load(str(path), path.resolve().name, path.resolve().name)
    if path.exists() or source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise ExportError(
            f"{source} is not a model; expected a Hugging Face folder, a hub id like org/name, "
            "a .gguf file or a model.onnx"
        )
    return _load(source, source.split("/")[1], source)


def _check_gguf(path: Path) -> None:
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ExportError(
            f"{path} begins with {magic!r}, expected b'GGUF'; it is no GGUF file or is damaged"
        )


def _load(where: str, name: str, origin: str, **options: Any) -> Source:
    with _quiet():
        try:
            config = AutoConfig.from_pretrained(where, **options)
            _check_model_type(config)
            model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **options)
            tokenizer = AutoTokenizer.from_pretrained(where, **options)
            generation = model.generation_config or GenerationConfig()
        except ExportError:
            raise
        except Exception as error:  # transformers raises nearly every built-in type here
            reason = str(error).strip().splitlines()
            raise ExportError(
                f"{origin} can't be loaded as a causal language model: "
                f"{reason[0] if reason else type(error).__name__}"
            ) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ExportError(
            f"{origin} has no fast tokenizer (tokenizer.json); save one with the model first"
        )
    _check_finite(model)
    return Source(
        name=name,
        origin=origin,
        model=model.eval(),
        tokenizer=tokenizer,
        generation_config=generation,
    )


def _check_model_type(config: Any) -> None:
    from lade_edge.export.support import check_config

    check_config(config.get_text_config())


def _check_finite(model: Any) -> None:
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ExportError(f"weight {name} holds values that are not finite; the file is damaged")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own bars and advice off the terminal while it loads."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def save_sidecars(source: Source, folder: Path) -> None:
    """Write tokenizer, chat template, config and generation config as any model folder has them."""
    with _quiet():
        source.tokenizer.save_pretrained(folder)
        source.model.config.save_pretrained(folder)
        source.generation_config.save_pretrained(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ExportError("the tokenizer can't be saved as tokenizer.json; a fast one is needed")
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config.pop("_name_or_path", None)
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
