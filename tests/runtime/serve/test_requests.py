"""The request parser: what it takes, what it refuses, and that it never fails otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.serve import requests
from lade_edge.runtime.serve.api_error import ApiError
from lade_edge.runtime.serve.requests import (
    Ask,
    Limits,
    parse_chat,
    parse_completion,
    parse_json,
)

LIMITS = Limits(model_name="m", default_tokens=7, most_tokens=50)
MESSAGES = [{"role": "user", "content": "x"}]
DEFAULTS = GenerationConfig(max_new_tokens=7, reuse_prefix=True)


def chat(**fields: Any) -> Ask:
    return parse_chat({"messages": MESSAGES} | fields, LIMITS)


def completion(**fields: Any) -> Ask:
    return parse_completion({"prompt": "x"} | fields, LIMITS)


def error_of(parse: Any, **fields: Any) -> dict[str, Any]:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert caught.value.status in (400, 404)
    found: dict[str, Any] = json.loads(caught.value.body())["error"]
    return found


def test_defaults() -> None:
    assert chat() == Ask(
        chat=True, prompt=MESSAGES, config=DEFAULTS, stream=False, include_usage=False,
        special_tokens=False,
    )  # fmt: skip
    nothing = dict.fromkeys([*requests._CHAT, *requests._REFUSED])
    nothing.pop("messages")
    assert chat(**nothing) == chat(model="m") == chat()
    assert completion().config == DEFAULTS
    fixed = Limits(
        model_name="m", default_tokens=7, most_tokens=9, mode="plain", reuse_prefix=False
    )
    found = parse_completion({"prompt": "x"}, fixed).config
    assert (found.mode, found.reuse_prefix) == ("plain", False)
    assert parse_completion({"prompt": "x", "mode": "exact"}, fixed).config.mode == "exact"


def test_what_asks_for_nothing_passes() -> None:
    for name, values in requests._REFUSED.items():
        for value in values:
            assert chat(**{name: value}) == chat()
            assert completion(**{name: value}) == completion()
    assert chat(user="me", metadata={"a": 1}) == chat()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 2), ("n", True), ("best_of", 3), ("echo", True), ("suffix", "x"), ("n", 1.0),
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
        ("response_format", {"type": "json_object"}), ("store", True), ("audio", {}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("reasoning_effort", "high"), ("modalities", ["audio"]), ("nonsense", 0),
        ("temperature", 3000), ("temperature", "1"), ("temperature", True), ("top_p", 2),
        ("top_k", 1.5), ("top_k", -1), ("min_p", -1), ("seed", -1), ("seed", "x"), ("seed", 1 << 70),
        ("mode", "fast"), ("mode", []), ("repetition_penalty", 0), ("min_new_tokens", 9),
        ("max_tokens", 51), ("max_tokens", -1), ("max_tokens", "9"), ("max_tokens", True),
        ("stop", 5), ("stop", [5]), ("stop", ""), ("stop", ["x" * 300]), ("stop", ["x"] * 17),
        ("logit_bias", []), ("logit_bias", {"x": 1}), ("logit_bias", {"1": "x"}),
        ("logit_bias", {"-1": 1}), ("stream", 1), ("ignore_eos", "yes"), ("special_tokens", 1),
        ("stream_options", {"include_usage": True}), ("stream_options", 5),
    ],
)  # fmt: skip
def test_refused_by_name(name: str, value: Any) -> None:
    for parse in (chat, completion):
        found = error_of(parse, **{name: value})
        assert found["param"] == name
        assert found["message"].startswith(name)
        assert "\n" not in found["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [*MESSAGES, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content"),
        ({"messages": [MESSAGES[0] | {"tool_calls": [{}]}]}, "messages[0].tool_calls"),
        ({"messages": [MESSAGES[0] | {"name": 5}]}, "messages[0].name"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 9}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_completion_tokens": 99}, "max_completion_tokens"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options"),
        ({"prompt": "x"}, "prompt"),
    ],
)  # fmt: skip
def test_refused_in_a_chat(fields: dict[str, Any], param: str) -> None:
    assert error_of(chat, **fields)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 9}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ],
)
def test_refused_in_a_completion(fields: dict[str, Any], param: str) -> None:
    assert error_of(completion, **fields)["param"] == param


def test_messages_as_they_arrive() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": parts, "name": "n"},
        {"role": "assistant", "content": "y", "refusal": None, "tool_calls": None, "audio": None},
    ]
    assert chat(messages=messages).prompt == [
        {"role": "system", "content": "x"},
        {"role": "user", "content": "ab", "name": "n"},
        {"role": "assistant", "content": "y"},
    ]


def test_another_model_is_not_found() -> None:
    assert error_of(chat, model="gpt")["code"] == "model_not_found"
    assert error_of(chat, model=5)["param"] == "model"


def test_messages_of_errors_are_bounded() -> None:
    found = error_of(chat, temperature="x" * 1_000_000)
    assert len(found["message"]) < 1000


@pytest.mark.parametrize("body", [b'{"a": ' + b"9" * 5000 + b"}", b'{"a": Infinity}', b'"\\ud800"'])
def test_bodies_that_trip_parsers(body: bytes) -> None:
    with pytest.raises(ApiError, match="the body is"):
        parse_json(body)
