"""Options of a generation as a user types them: ``temperature=0.8``."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.config import GenerationConfig

_DEFAULTS = GenerationConfig()
_NAMES = tuple(field.name for field in fields(GenerationConfig) if field.name != "reuse_prefix")


def with_setting(config: GenerationConfig, text: str) -> GenerationConfig:
    """A copy of a configuration with one option changed.

    Args:
        config: The configuration.
        text: ``key=value``; the value as JSON, or as it is where a text is wanted.

    Raises:
        ConfigError: If there is no such option or the value can't be used.
    """
    key, separator, written = text.partition("=")
    name = key.strip().lstrip("-").replace("-", "_")
    if not separator:
        raise ConfigError(f"{text!r} sets nothing; expected key=value, like temperature=0.8")
    if name not in _NAMES:
        raise ConfigError(f"there is no option {name!r}; options are {', '.join(_NAMES)}")
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        value = written.strip()
    default = getattr(_DEFAULTS, name)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; expected true or false")
    if isinstance(default, tuple):
        value = _listed(name, value)
    if name == "logit_bias":
        value = _by_token(value)
    return replace(config, **{name: value})


def described(config: GenerationConfig) -> str:
    """The options that differ from their defaults, one a line."""
    changed = {
        name: getattr(config, name)
        for name in _NAMES
        if getattr(config, name) != getattr(_DEFAULTS, name)
    }
    lines = [f"{name}={json.dumps(value)}" for name, value in changed.items()]
    return "\n".join(lines) or "all options have their defaults"


def _listed(name: str, value: object) -> tuple[object, ...]:
    wanted = int if name == "eos_token_ids" else str
    parts = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(part) is wanted for part in parts):
        kind = "token ids" if wanted is int else "texts"
        raise ConfigError(f"{name} is {value!r}; expected a list of {kind}")
    return tuple(parts)


def _by_token(value: object) -> object:
    try:
        return {int(token): bias for token, bias in value.items()} if value else {}  # type: ignore[attr-defined]
    except (AttributeError, ValueError) as error:
        raise ConfigError(
            f'logit_bias is {value!r}; expected an object like {{"42": -1}}'
        ) from error
