"""From the JSON of a request to what is to be generated, or a 400 that names the field.

What isn't supported is refused, never ignored: a client that asks for a schema must not get free text.
Values that ask for nothing (``n`` of 1, empty ``tools``) pass, since client libraries send them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.prompt import Prompt
from lade_edge.runtime.serve.api_error import ApiError

MOST_LOGPROBS = 8
_MOST_STOPS = 16
_LONGEST_STOP = 256  # characters
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Fields with the name and meaning of a generation option.
_OPTIONS = frozenset({
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
    "presence_penalty", "frequency_penalty", "no_repeat_ngram_size", "min_new_tokens", "seed",
    "mode",
})  # fmt: skip
_FLAGS = frozenset({"ignore_eos", "special_tokens", "stream"})
_SHARED = (
    _OPTIONS | _FLAGS | {"model", "max_tokens", "stop", "logit_bias", "logprobs", "stream_options"}
)
_CHAT = _SHARED | {"messages", "max_completion_tokens", "top_logprobs"}
_COMPLETION = _SHARED | {"prompt"}
# Known fields that can't be had, with the values that ask for nothing.
_REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
_FOR_THE_LOG = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the server allows a request.

    Attributes:
        model_name: Name clients call the model by.
        default_tokens: New tokens where a request doesn't say.
        most_tokens: New tokens at most.
        mode: Mode where a request doesn't say, None for the runtime's.
        reuse_prefix: Requests begin with what the KV cache shares with the one before.
    """

    model_name: str
    default_tokens: int
    most_tokens: int
    mode: str | None = None
    reuse_prefix: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that can be run.

    Attributes:
        chat: Whether it came as a conversation.
        prompt: Text, messages, or token ids.
        config: Options.
        stream: Send events while it runs.
        include_usage: Send the usage at the end of the stream.
        special_tokens: Special tokens written in the prompt count as such.
    """

    chat: bool
    prompt: Prompt
    config: GenerationConfig
    stream: bool
    include_usage: bool
    special_tokens: bool


def parse_json(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a body.

    Raises:
        ApiError: If it isn't one.
    """
    try:
        found = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(
            400, f"the body is not JSON in UTF-8 ({error}); expected one object"
        ) from error
    if not isinstance(found, dict):
        raise ApiError(400, "the body is JSON but no object; expected fields like model in one")
    return found


def parse_chat(fields: Mapping[str, Any], limits: Limits) -> Ask:
    """A request to ``/v1/chat/completions``.

    Raises:
        ApiError: 400 that names the field at fault, 404 for another model.
    """
    fields = _known(fields, _CHAT, limits)
    if "messages" not in fields:
        _refuse("messages", "is missing; expected a list of messages")
    top = fields.get("top_logprobs")
    if not isinstance(fields.get("logprobs", False), bool):
        _refuse("logprobs", "is no boolean; expected true or false")
    if top is not None and not fields.get("logprobs"):
        _refuse("top_logprobs", "goes only with logprobs; set that to true")
    logprobs = _count("top_logprobs", top or 0) if fields.get("logprobs") else None
    both = {fields[name] for name in ("max_tokens", "max_completion_tokens") if name in fields
            if isinstance(fields[name], int)}  # fmt: skip
    if len(both) > 1:
        _refuse("max_tokens", "and max_completion_tokens differ; leave one out")
    name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
    return _ask(fields, _messages(fields["messages"]), limits, logprobs=logprobs, tokens=name)


def parse_completion(fields: Mapping[str, Any], limits: Limits) -> Ask:
    """A request to ``/v1/completions``.

    Raises:
        ApiError: 400 that names the field at fault, 404 for another model.
    """
    fields = _known(fields, _COMPLETION, limits)
    if "prompt" not in fields:
        _refuse("prompt", "is missing; expected a text or a list of token ids")
    logprobs = _count("logprobs", fields["logprobs"]) if "logprobs" in fields else None
    return _ask(fields, _prompt(fields["prompt"]), limits, logprobs=logprobs, tokens="max_tokens")


def _known(fields: Mapping[str, Any], names: frozenset[str], limits: Limits) -> Mapping[str, Any]:
    """The fields that say something, if all of them can be met."""
    found = {}
    for name, value in fields.items():
        if value is None or name in _FOR_THE_LOG:
            continue
        if name in names:
            found[name] = value
        elif name not in _REFUSED:
            _refuse(name[:64], "is no field of this request; leave it out or check its spelling")
        elif not any(type(value) is type(none) and value == none for none in _REFUSED[name]):
            _refuse(name, "asks for something this server doesn't have; leave it out")
    model = found.get("model", limits.model_name)
    if model != limits.model_name:
        raise ApiError(
            404,
            f"the model {model!r} is not here; this server has {limits.model_name!r}",
            param="model",
            code="model_not_found",
        )
    for name in _FLAGS & found.keys():
        if not isinstance(found[name], bool):
            _refuse(name, "is no boolean; expected true or false")
    return found


def _ask(
    fields: Mapping[str, Any],
    prompt: Prompt,
    limits: Limits,
    *,
    logprobs: int | None,
    tokens: str,
) -> Ask:
    options = {name: fields[name] for name in _OPTIONS & fields.keys()}
    options.setdefault("mode", limits.mode)
    count = fields.get(tokens, limits.default_tokens)
    if type(count) is not int or not 0 <= count <= limits.most_tokens:
        _refuse(tokens, f"is {count!r}; expected a whole number from 0 to {limits.most_tokens}")
    stream = fields.get("stream", False)
    try:
        config = GenerationConfig(
            **options,
            max_new_tokens=count,
            stop=_stops(fields.get("stop", ())),
            logit_bias=_bias(fields.get("logit_bias", {})),
            logprobs=logprobs,
            ignore_eos=fields.get("ignore_eos", False),
            reuse_prefix=limits.reuse_prefix,
        )
    except ConfigError as error:
        name = str(error).split(maxsplit=1)[0]
        param = {"max_new_tokens": tokens}.get(name, name)
        raise ApiError(400, str(error), param=param if param in fields else None) from error
    return Ask(
        chat="messages" in fields,
        prompt=prompt,
        config=config,
        stream=stream,
        include_usage=_include_usage(fields.get("stream_options", {}), stream=stream),
        special_tokens=fields.get("special_tokens", False),
    )


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        _refuse("messages", "is no list of messages; expected at least one")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(value)]


def _message(message: object, where: str) -> dict[str, str]:
    if not isinstance(message, dict):
        _refuse(where, "is no object; expected role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        _refuse(f"{where}.role", f"is {role!r}; expected one of {', '.join(_ROLES)}")
    for name, part in message.items():
        if name not in ("role", "content", "name") and part:
            _refuse(f"{where}.{name[:64]}", "can't be used here; leave it out")
    found = {"role": _ROLES[role], "content": _content(message.get("content"), f"{where}.content")}
    name = message.get("name")
    if name is not None:
        if not isinstance(name, str):
            _refuse(f"{where}.name", "is no text; expected one")
        found["name"] = name
    return found


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, "is no text; expected one, or a list of text parts")
    text = ""
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text":
            _refuse(where, "has a part that is no text; only text can be read")
        if not isinstance(part.get("text"), str):
            _refuse(where, "has a text part without a text; expected one in its field text")
        text += part["text"]
    return text


def _prompt(prompt: object) -> str | list[int]:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            _refuse("prompt", f"is a list of {len(prompt)}; expected one prompt a request")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        _refuse("prompt", "is neither a text nor a list of token ids; expected one of these")
    return prompt


def _stops(stop: object) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(text, str) for text in stops):
        _refuse("stop", "is neither a text nor a list of texts; expected one of these")
    if len(stops) > _MOST_STOPS or any(not 1 <= len(text) <= _LONGEST_STOP for text in stops):
        _refuse("stop", f"must be at most {_MOST_STOPS} texts of 1 to {_LONGEST_STOP} characters")
    return tuple(stops)


def _bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, dict):
        _refuse("logit_bias", "is no object; expected numbers by token id")
    try:
        return {int(token): value for token, value in bias.items()}
    except ValueError:
        _refuse("logit_bias", "has a key that is no token id; expected whole numbers")


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST_LOGPROBS:
        _refuse(name, f"is {value!r}; expected a whole number from 0 to {MOST_LOGPROBS}")
    return value


def _include_usage(options: object, *, stream: bool) -> bool:
    if not isinstance(options, dict):
        _refuse("stream_options", "is no object; expected include_usage in one")
    if options and not stream:
        _refuse("stream_options", "goes only with stream; set that to true")
    for name, value in options.items():
        if name != "include_usage" or not isinstance(value, bool):
            _refuse("stream_options", "may hold include_usage, true or false, and nothing else")
    return bool(options.get("include_usage"))


def _refuse(field: str, what: str) -> NoReturn:
    raise ApiError(400, f"{field} {what}", param=field)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
