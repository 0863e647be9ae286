"""Chat templates: messages to text, rendered as transformers renders them.

Templates are untrusted programs from a model folder, so they run in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lade_edge.engines.errors import ConfigError, ManifestError

Message = Mapping[str, Any]

# What a template, or a filter fed with odd messages, can raise while it runs.
_RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """The chat templates of one model folder.

    Args:
        templates: Template source by name; ``"default"`` is used unless tools are given and a
            ``"tool_use"`` template is there.
        special_tokens: Variables such as ``bos_token`` that templates may use.
    """

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._environment = _environment()
        self._compiled: dict[str, jinja2.Template] = {}

    @classmethod
    def from_folder(cls, folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
        """Collect the templates of a model folder.

        ``chat_template.jinja`` and ``additional_chat_templates/NAME.jinja`` win over the
        ``chat_template`` entry of the tokenizer configuration.

        Args:
            folder: Model folder.
            config: Its tokenizer configuration.

        Returns:
            The templates, or None if the folder has none.

        Raises:
            ManifestError: If a template file can't be read or the entry has another form.
        """
        entry = config.get("chat_template") or []
        if isinstance(entry, str):
            entry = [{"name": "default", "template": entry}]
        try:
            templates: dict[str, str] = {item["name"]: item["template"] for item in entry}
        except (KeyError, TypeError) as error:
            raise ManifestError(
                f"chat_template in {folder / 'tokenizer_config.json'} is neither a text nor a list "
                "of named templates; export the model again"
            ) from error
        files = {path.stem: path for path in folder.glob("additional_chat_templates/*.jinja")}
        if (path := folder / "chat_template.jinja").is_file():
            files["default"] = path
        if files:
            templates = {name: _read(path) for name, path in files.items()}
        return cls(templates, special_tokens(config)) if templates else None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render a conversation.

        Args:
            messages: Messages with ``role`` and ``content``; entries that are None are left out.
            tools: JSON schemas of tools on offer.
            add_generation_prompt: End with the opening of the model's answer.

        Returns:
            The text to tokenise, special tokens included.

        Raises:
            ConfigError: If the template refuses the messages or fails on them.
        """
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ConfigError(
                f"the model has chat templates {', '.join(sorted(self._templates))} but no default "
                "one; pass raw text (--raw)"
            )
        try:
            if name not in self._compiled:
                self._compiled[name] = self._environment.from_string(self._templates[name])
            return self._compiled[name].render(
                **self._special_tokens,
                messages=[
                    {key: value for key, value in message.items() if value is not None}
                    for message in messages
                ],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"the model's chat template has a syntax error in line {error.lineno}: "
                f"{error.message}; correct chat_template.jinja or pass raw text (--raw)"
            ) from error
        except _RENDER_ERRORS as error:
            raise ConfigError(
                f"the model's chat template refused the messages: {_sentence(error)}; change them "
                "or pass raw text (--raw)"
            ) from error


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by the names templates use, from a tokenizer configuration.

    A token is a string or a mapping with ``content``.
    """
    named = dict(config)
    for key in ("model_specific_special_tokens", "extra_special_tokens"):
        extra = config.get(key)
        if isinstance(extra, Mapping):
            named |= extra
    tokens = {}
    for name, value in named.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


class _GenerationBlock(Extension):
    """The ``{% generation %}`` block, which marks answers for training: a plain group here."""

    tags = {"generation"}  # noqa: RUF012 - the base class says set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path} can't be read as UTF-8 text: {_sentence(error)}") from error


def _sentence(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
