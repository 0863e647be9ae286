"""Load a model and its tokenizer from a folder, a hub id or a GGUF file.

Everything comes in float32, whatever the source stores: lowering decides what is kept.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from lade_edge.engines import ExportError, LadeError
from lade_edge.export.layer_probe import probe_layers
from lade_edge.export.support import check_config, check_modules

_SMALLEST_VOCABULARY = 2  # tokenizers made up for a folder without one know fewer words
_NO_TOKENIZER = (
    "{} has no fast tokenizer (tokenizer.json) that loads; save one with the model first"
)


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
        """Union of the end ids of configs, tokenizer and chat template, ascending."""
        found: set[int | None] = {_turn_end(self.tokenizer)}
        for holder in (self.model.config, self.config, self.generation_config, self.tokenizer):
            ids = getattr(holder, "eos_token_id", None)
            found |= set(ids) if isinstance(ids, (list, tuple)) else {ids}
        return tuple(sorted(i for i in found if isinstance(i, int) and i >= 0))


def _turn_end(tokenizer: Any) -> int | None:
    """The special token that the chat template puts right behind an answer, if there is one."""
    answer = "the answer"
    chat = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:  # templates run code of their own, and many models have none
        return None
    _, found, rest = text.rpartition(answer)
    ids = tokenizer.encode(rest, add_special_tokens=False) if found else []
    added = tokenizer.added_tokens_decoder
    return ids[0] if ids and ids[0] in added and added[ids[0]].special else None


def load_source(source: str) -> Source:
    """Load weights and tokenizer.

    Args:
        source: A Hugging Face folder, a hub id, or a ``.gguf`` file.

    Raises:
        ExportError: If nothing is there, it isn't a causal language model that loads, or the graph
            has no form for it.
    """
    path = Path(source)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ExportError(f"{source} does not exist; expected a .gguf file")
        _check_gguf(path)
        return _load(str(path.parent), path.stem, path.name, gguf_file=path.name)
    if path.is_dir():
        if (path / "lade.json").is_file():
            raise ExportError(
                f"{source} is a bundle; to lower it further name its canonical graph, "
                f"{path / 'model.onnx'}"
            )
        _check_adapter(source, source)
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
    with _quiet(), _one_sentence(f"{source} can't be read as a model"):
        _check_adapter(source, source)
    return _load(source, source.split("/")[1], source)


def _check_adapter(where: str, origin: str) -> None:
    """Transformers would leave an adapter out without a word."""
    if find_adapter_config_file(where):
        raise ExportError(
            f"{origin} holds an adapter (adapter_config.json), which can't be exported; merge it "
            "into the model's weights first, with peft's merge_and_unload"
        )


def _check_gguf(path: Path) -> None:
    with path.open("rb") as stream:
        magic = stream.read(4)
    if magic != b"GGUF":
        raise ExportError(
            f"{path} begins with {magic!r}, expected b'GGUF'; it is no GGUF file or is damaged"
        )


def _load(where: str, name: str, origin: str, **options: Any) -> Source:
    """Config first, then a model without weights, so that what can't be exported costs nothing."""
    with _quiet():
        with _one_sentence(f"{origin} can't be read as a model"):
            config = AutoConfig.from_pretrained(where, trust_remote_code=False, **options)
        _check_unquantized(config, origin)
        check_config(config.get_text_config())
        with _one_sentence(f"{origin} is no causal language model that transformers knows"):
            skeleton = _without_weights(config)
        _check_skeleton(skeleton)
        with _one_sentence(f"the weights of {origin} can't be loaded"):
            model, loading = AutoModelForCausalLM.from_pretrained(
                where,
                config=config,
                dtype=torch.float32,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
        tokenizer = _load_tokenizer(where, origin, **options)
    _check_complete(loading["missing_keys"], origin)
    _check_finite(model)
    return Source(
        name=name,
        origin=origin,
        model=model.eval(),
        tokenizer=tokenizer,
        generation_config=model.generation_config or GenerationConfig(),
    )


def _check_unquantized(config: Any, origin: str) -> None:
    """Layers that hold integers have a forward of their own, and each kind a library of its own."""
    found = getattr(config, "quantization_config", None)
    if found:
        method = found.get("quant_method") if isinstance(found, dict) else found.quant_method
        raise ExportError(
            f"{origin} holds weights quantised by {method or 'an unnamed method'}, expected floats; "
            "export the model it was made from, with --precision int8 or int4"
        )


@contextlib.contextmanager
def _one_sentence(what: str) -> Iterator[None]:
    """Say in one sentence what failed: transformers raises nearly every built-in type."""
    try:
        yield
    except LadeError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].partition(". ")[0].rstrip(".:")
        raise ExportError(f"{what} ({reason}); get it again, or name another model") from error


def _without_weights(config: Any) -> Any:
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()


def _check_skeleton(skeleton: Any) -> None:
    """Refuse what the modules, or a dry run of them, show to have no place in the graph."""
    check_modules(skeleton)
    try:
        probe_layers(skeleton)
    except ExportError as error:
        # some models can't run without weights at all; those are judged when they have them
        if not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
            raise


def _load_tokenizer(where: str, origin: str, **options: Any) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=False, **options)
        size = tokenizer.backend_tokenizer.get_vocab_size(with_added_tokens=False)
    except Exception as error:  # none there, a damaged one, or a slow one, each in its own way
        raise ExportError(_NO_TOKENIZER.format(origin)) from error
    if size < _SMALLEST_VOCABULARY:
        raise ExportError(_NO_TOKENIZER.format(origin))
    return tokenizer


def _check_complete(missing: Iterable[str], origin: str) -> None:
    """Transformers would make up what is missing, at random."""
    for name in sorted(missing):
        raise ExportError(
            f"{origin} lacks the weight {name}; the model is incomplete, get it again"
        )


def _check_finite(model: Any) -> None:
    for name, weight in model.named_parameters():
        if weight.numel() and not all(bool(torch.isfinite(end)) for end in weight.aminmax()):
            raise ExportError(
                f"weight {name} holds values that are not finite; the file is damaged, get it again"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' own bars and advice off the terminal while it loads or saves."""
    level = transformers_logging.get_verbosity()
    hub_logger = logging.getLogger("huggingface_hub")
    hub_level = hub_logger.level
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    hub_logger.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        hub_logger.setLevel(hub_level)
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
