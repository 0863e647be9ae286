"""A draft history as a file, to go on with after a restart.

JSON: ``schema``, ``tokenizer`` (a digest, so that ids keep their meaning), ``texts`` (lists of token
ids) and ``successors`` (per context length, pairs of a context and its ``[token, class]`` pairs).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.drafting.history import DraftHistory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SCHEMA = 1
_MAX_BYTES = 64_000_000


def read_pool(path: Path, tokenizer: Tokenizer, vocab_size: int) -> DraftHistory:
    """Read a history; an absent file gives an empty one.

    Args:
        path: The file.
        tokenizer: Tokenizer of the model it is for.
        vocab_size: Token ids the model knows, which may be more than the tokenizer does.

    Raises:
        ConfigError: If the file can't be read, is none of ours, or belongs to another tokenizer.
    """
    history = DraftHistory()
    if not path.parent.is_dir():
        raise ConfigError(f"{path.parent} is no folder; make it, or choose another --pool file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise _bad(path, "is no file")
    if os.path.isfile(path) and os.path.getsize(path) > _MAX_BYTES:
        raise _bad(path, f"has {os.path.getsize(path) / 1e6:.0f} MB")
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return history
    except OSError as error:
        raise ConfigError(
            f"{path} can't be read ({error.strerror}); expected a pool file or a new name"
        ) from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, "is not JSON") from error
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA:
        raise _bad(path, f"is not of schema {_SCHEMA}")
    if content.get("tokenizer") != tokenizer_digest(tokenizer):
        raise ConfigError(
            f"{path} was learnt with another tokenizer, so its tokens mean something else here; "
            "choose another --pool file for this model"
        )
    try:
        texts = [_tokens(text, vocab_size) for text in content["texts"]]
        history.successors.restore({
            int(order): {
                _tokens(context, vocab_size): [
                    (_below(token, vocab_size), _below(kind, 1000)) for token, kind in entry
                ]
                for context, entry in table
            }
            for order, table in content["successors"].items()
        })  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _bad(path, "is damaged") from error
    history.fill(texts)
    return history


def write_pool(path: Path, history: DraftHistory, tokenizer: Tokenizer) -> None:
    """Write a history; the file is the old one until the new one is complete.

    Raises:
        ConfigError: If the file can't be written.
    """
    content = {
        "schema": _SCHEMA,
        "tokenizer": tokenizer_digest(tokenizer),
        "texts": list(history.texts),
        "successors": {
            order: list(table.items()) for order, table in history.successors.kept().items()
        },
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{path} can't be written ({error.strerror}); the pool of this run is lost, choose "
            "another --pool file"
        ) from error


def tokenizer_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of what a tokenizer does."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def _tokens(values: Any, vocab_size: int) -> tuple[int, ...]:
    return tuple(_below(value, vocab_size) for value in values)


def _below(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError
    return value


def _bad(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"{path} {found}; expected a pool file that --pool has written, or a new name"
    )
