"""The server over real HTTP, asked by OpenAI's own client."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from fakes import OpinionatedEngine, Script, scripted_model
from lade_edge.engines.errors import EngineError
from lade_edge.engines.protocol import Int64Array, StepResult
from lade_edge.runtime.config import GenerationConfig
from lade_edge.runtime.generation import Generation
from lade_edge.runtime.serve import app, reply
from serving import CAPACITY, NAME, PacedEngine, Served, paced_model, served, wait_for

CHAT: list[Any] = [{"role": "user", "content": "ab"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as found:
        yield found


def expected(prompt: Any = "ab", **options: Any) -> Generation:
    options = {"max_new_tokens": 40} | options
    return paced_model().generate(prompt, config=GenerationConfig(**options))


def expected_raw(prompt: Any, **options: Any) -> Generation:
    return paced_model().generate(prompt, raw=True, **{"max_new_tokens": 40} | options)


def test_a_chat(server: Served) -> None:
    found = server.client.chat.completions.create(model=NAME, messages=CHAT)
    theirs = expected()
    assert found.choices[0].message.content == theirs.text
    assert found.choices[0].message.role == "assistant"
    assert found.choices[0].finish_reason == "stop"
    assert (found.object, found.model) == ("chat.completion", NAME)
    assert found.usage is not None
    assert found.usage.completion_tokens == len(theirs.output_ids)
    assert found.usage.prompt_tokens == theirs.prompt_tokens
    assert found.usage.total_tokens == len(theirs.output_ids) + theirs.prompt_tokens


def test_a_chat_in_pieces(server: Served) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 50}
    whole = server.client.chat.completions.create(model=NAME, messages=CHAT, **options)
    chunks = list(
        server.client.chat.completions.create(
            model=NAME,
            messages=CHAT,
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[-2:-1]] == [whole.choices[0].finish_reason]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage is not None and whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].choices == []
    assert len(chunks) > 6


def test_no_usage_unless_asked(server: Served) -> None:
    chunks = server.client.chat.completions.create(model=NAME, messages=CHAT, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_a_completion(server: Served) -> None:
    theirs = expected_raw("ab")
    found = server.client.completions.create(model=NAME, prompt="ab")
    assert found.choices[0].text == theirs.text
    assert found.usage is not None
    assert found.usage.prompt_tokens == 2
    for prompt in ([97, 98], ["ab"], [[97, 98]]):
        again = server.client.completions.create(model=NAME, prompt=prompt)
        assert again.choices[0].text == theirs.text
    pieces = server.client.completions.create(model=NAME, prompt="ab", stream=True)
    chunks = list(pieces)
    assert "".join(chunk.choices[0].text for chunk in chunks) == theirs.text
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_stop_texts_and_budgets(server: Served) -> None:
    theirs = expected(stop=("a", "zz"), max_new_tokens=60)
    found = server.client.chat.completions.create(
        model=NAME, messages=CHAT, stop=["a", "zz"], max_completion_tokens=60
    )
    assert found.choices[0].message.content == theirs.text
    assert theirs.finish_reason == found.choices[0].finish_reason == "stop"
    found = server.client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=3)
    assert found.choices[0].finish_reason == "length"
    assert found.usage is not None
    assert found.usage.completion_tokens == 3
    none = server.client.completions.create(model=NAME, prompt="ab", max_tokens=0)
    assert (none.choices[0].text, none.choices[0].finish_reason) == ("", "length")
    assert none.usage is not None
    assert none.usage.completion_tokens == 0
    chunks = server.client.chat.completions.create(
        model=NAME, messages=CHAT, max_tokens=0, stream=True
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, "length"]


def test_a_seed_gives_the_same_text_and_sampling_fields_arrive(server: Served) -> None:
    ours: dict[str, Any] = {
        "top_k": 5, "min_p": 0.01, "typical_p": 0.99, "repetition_penalty": 1.2, "mode": "plain",
        "no_repeat_ngram_size": 7, "min_new_tokens": 5,
    }  # fmt: skip
    theirs: dict[str, Any] = {
        "temperature": 1.1, "top_p": 0.95, "presence_penalty": 0.1, "frequency_penalty": -0.1,
        "seed": 42,
    }  # fmt: skip
    wanted = expected(logit_bias={97: -2.0}, **ours, **theirs)
    for _ in range(2):
        found = server.client.chat.completions.create(
            model=NAME, messages=CHAT, logit_bias={"97": -2}, extra_body=ours, **theirs
        )
        assert found.choices[0].message.content == wanted.text
    other = server.client.chat.completions.create(
        model=NAME, messages=CHAT, logit_bias={"97": -2}, extra_body=ours, **theirs | {"seed": 1}
    )
    assert other.choices[0].message.content != wanted.text


@pytest.mark.parametrize("options", [{}, {"stop": ["a"]}])
def test_logprobs_end_with_the_tokens_of_the_usage(server: Served, options: dict[str, Any]) -> None:
    wanted = expected(logprobs=3, **options)
    asked: dict[str, Any] = {
        "model": NAME, "messages": CHAT, "logprobs": True, "top_logprobs": 3, **options,
    }  # fmt: skip
    found = server.client.chat.completions.create(**asked)
    assert found.choices[0].logprobs is not None
    whole = found.choices[0].logprobs.content
    assert whole is not None and found.usage is not None
    assert len(whole) == found.usage.completion_tokens == len(wanted.output_ids)
    assert [one.logprob for one in whole] == [one.logprob for one in wanted.logprobs]
    assert [len(one.top_logprobs) for one in whole] == [3] * len(whole)
    assert whole[0].token == chr(wanted.output_ids[0])
    assert whole[0].bytes == [wanted.output_ids[0]]
    streamed: list[Any] = []
    for chunk in server.client.chat.completions.create(stream=True, **asked):
        if chunk.choices[0].logprobs is not None:
            streamed += chunk.choices[0].logprobs.content or []
    assert [one.model_dump() for one in streamed] == [one.model_dump() for one in whole]


def test_logprobs_of_a_completion(server: Served) -> None:
    wanted = expected_raw("ab", logprobs=2, ignore_eos=True)
    options: dict[str, Any] = {
        "model": NAME, "prompt": "ab", "logprobs": 2, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    found = server.client.completions.create(**options)
    whole = found.choices[0].logprobs
    assert whole is not None
    assert whole.token_logprobs == [one.logprob for one in wanted.logprobs]
    assert [len(top) for top in whole.top_logprobs or []] == [2] * 40
    streamed: dict[str, list[Any]] = {}
    for chunk in server.client.completions.create(stream=True, **options):
        if chunk.choices[0].logprobs is not None:
            for name, value in chunk.choices[0].logprobs.model_dump().items():
                streamed[name] = streamed.get(name, []) + value
    assert streamed == whole.model_dump()
    assert streamed["text_offset"][:3] == [0, 1, 2]


def test_a_follow_up_reuses_the_cache(server: Served) -> None:
    first = server.client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=9)
    turns = [
        *CHAT,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "c"},
    ]
    second = server.client.chat.completions.create(model=NAME, messages=turns, max_tokens=9)
    assert second.usage is not None and second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > len("[user]ab\n[assistant]")
    assert second.choices[0].message.content == expected(turns, max_new_tokens=9).text


def test_typed_special_tokens_are_text_unless_asked(server: Served) -> None:
    options: dict[str, Any] = {"model": NAME, "prompt": "<|eos|>", "max_tokens": 1}
    found = server.client.completions.create(**options)
    asked = server.client.completions.create(**options, extra_body={"special_tokens": True})
    assert found.usage is not None and asked.usage is not None
    assert (found.usage.prompt_tokens, asked.usage.prompt_tokens) == (len("<|eos|>"), 1)


def test_models_and_health(server: Served) -> None:
    assert [model.id for model in server.client.models.list()] == [NAME]
    assert server.client.models.retrieve(NAME).owned_by == "lade"
    with pytest.raises(openai.NotFoundError, match="'gpt' is not here"):
        server.client.models.retrieve("gpt")
    with pytest.raises(openai.NotFoundError, match="'gpt' is not here"):
        server.client.completions.create(model="gpt", prompt="ab")
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}


def test_metrics_count_what_was_delivered(server: Served) -> None:
    server.until_idle()
    before = server.metrics()
    found = server.client.completions.create(model=NAME, prompt="xyz", max_tokens=20)
    after = server.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert found.usage is not None
    assert grown["lade_output_tokens_total"] == found.usage.completion_tokens
    assert grown["lade_prompt_tokens_total"] == found.usage.prompt_tokens == 3
    assert grown['lade_requests_total{path="/v1/completions",status="200"}'] == 1
    assert after["lade_requests_running"] == after["lade_requests_waiting"] == 0
    assert after["process_resident_memory_bytes"] > 1e6


def test_an_error_is_one_sentence_in_openais_form(server: Served) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.chat.completions.create(model=NAME, messages=CHAT, n=2)
    assert caught.value.param == "n"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="holds 600 in all") as caught:
        server.client.completions.create(model=NAME, prompt="a" * 700)
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    with pytest.raises(openai.BadRequestError, match="knows 0 to 259") as caught:
        server.client.completions.create(model=NAME, prompt="a", logit_bias={"999": 1})
    assert caught.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError, match="has 608 tokens") as caught:
        server.client.chat.completions.create(
            model=NAME, messages=[{"role": "user", "content": "a" * 590}], stream=True
        )
    assert caught.value.param == "messages"


@pytest.mark.parametrize("prompt", ["", "\ud800", [], [999], [-1], "\x00\x01"])
def test_odd_prompts(server: Served, prompt: Any) -> None:
    answer = server.post("/v1/completions", content=json.dumps({"prompt": prompt}))
    assert answer.status_code == (200 if prompt == "\x00\x01" else 400)
    if answer.status_code == 400:
        assert answer.json()["error"]["message"].count("\n") == 0
        assert answer.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_bodies_that_are_no_json_object(server: Served, body: bytes) -> None:
    answer = server.post("/v1/completions", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("the body is")


def test_paths_that_are_not_there(server: Served) -> None:
    headers = {"authorization": "Bearer secret"}
    missing = httpx.get(f"{server.url}/v2", headers=headers)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
    wrong = httpx.get(f"{server.url}/v1/completions", headers=headers)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("sent", [None, "", "Bearer", "Bearer secre", "Bearer secrets", "Bearer é"])
def test_nobody_passes_without_the_key(server: Served, sent: str | None) -> None:
    headers = {} if sent is None else {"authorization": sent.encode()}
    for path in ("/v1/models", "/metrics", "/v1/completions", "/nowhere"):
        answer = httpx.get(f"{server.url}{path}", headers=headers)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert httpx.get(f"{server.url}/health").status_code == 200
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_a_body_over_the_limit(server: Served) -> None:
    for size in ((1 << 20) + 1, 20 << 20):
        body = json.dumps({"prompt": "a" * size})
        try:
            answer = server.post("/v1/completions", content=body)
        except httpx.TransportError:
            assert size > 8 << 20  # the refusal may be lost where the body isn't read to its end
            continue
        assert answer.status_code == 413
        assert "larger than 1048576 bytes" in answer.json()["error"]["message"]
    big = server.post("/v1/completions", content=json.dumps({"prompt": "a" * 900_000}))
    assert big.json()["error"]["code"] == "context_length_exceeded"


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    model = paced_model()
    engine = model.engine
    assert isinstance(engine, PacedEngine)
    with served(model, max_waiting=2) as server:
        engine.gate.clear()
        answers: list[Any] = []
        order: list[str] = []
        prefill = engine.prefill

        def remember(tokens: Int64Array) -> StepResult:
            order.append(bytes(tokens.tolist()).decode())
            return prefill(tokens)

        engine.prefill = remember  # type: ignore[method-assign]

        def ask(prompt: str) -> None:
            answers.append((prompt, server.client.completions.create(model=NAME, prompt=prompt)))

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in "abc"]
        for number, thread in enumerate(threads):  # one runs, two wait
            thread.start()
            wait_for(
                lambda number=number: (
                    server.worker.num_running + server.worker.num_waiting == number + 1
                )
            )
        wait_for(lambda: server.worker.num_waiting == 2)
        with pytest.raises(openai.RateLimitError) as caught:
            server.client.completions.create(model=NAME, prompt="d")
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 60
        assert caught.value.code == "queue_full"
        engine.gate.set()
        for thread in threads:
            thread.join(20)
        assert order == ["a", "b", "c"]  # as they came
        assert len(answers) == 3
        for prompt, answer in answers:
            assert answer.choices[0].text == expected_raw(prompt).text
        assert server.metrics()['lade_requests_total{path="/v1/completions",status="429"}'] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_ends_its_request(stream: bool) -> None:
    model = paced_model()
    engine = model.engine
    assert isinstance(engine, PacedEngine)
    with served(model) as server:
        engine.gate.clear()
        body = json.dumps({"prompt": "ab", "stream": stream, "ignore_eos": True,
                           "max_tokens": 500, "mode": "plain"}).encode()  # fmt: skip
        leaving, queued = open_request(server, body), open_request(server, body)
        wait_for(lambda: server.worker.num_running == 1 and server.worker.num_waiting == 1)
        queued.close()
        wait_for(lambda: server.worker.num_waiting == 0)
        leaving.close()
        wait_for(lambda: server.worker._running is None or server.worker._running.cancelled)
        steps = len(engine.widths)
        engine.gate.set()
        server.until_idle()
        assert len(engine.widths) <= steps + 1
        # What stayed in the cache is known: the next request builds on it.
        found = server.client.completions.create(model=NAME, prompt="ab")
        assert found.choices[0].text == expected_raw("ab").text


def open_request(server: Served, body: bytes) -> socket.socket:
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    found.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    found.sendall(head.encode() + body)
    return found


def test_a_slow_reader_holds_nobody_up() -> None:
    """They don't read until somebody else has an answer; theirs are many times the buffers."""
    with served(send_buffer=8192) as server:
        body = json.dumps({"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 590,
                           "logprobs": 8, "mode": "plain"}).encode()  # fmt: skip
        slow = [open_request(server, body) for _ in range(3)]
        wait_for(lambda: server.worker.num_waiting + server.worker.num_running >= 1)
        found = server.client.completions.create(model=NAME, prompt="ab")
        assert found.choices[0].text == expected_raw("ab").text
        data = b""
        for connection in slow:
            connection.settimeout(10)
            while not data.endswith(b"0\r\n\r\n"):
                data += connection.recv(1 << 20)
            assert b"[DONE]" in data
            assert len(data) > 200_000
            data = b""
            connection.close()


def test_a_reader_that_never_comes_back_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_LAST_WORD_S", 0.1)
    with served(send_buffer=8192, gate={"timeout_s": 1.0}) as server:
        body = json.dumps({"prompt": "ab", "stream": True, "ignore_eos": True, "max_tokens": 590,
                           "logprobs": 8, "mode": "plain"}).encode()  # fmt: skip
        connection = open_request(server, body)
        time.sleep(2)  # its second is over, and so is the time for a last word
        connection.settimeout(10)
        data = b""
        while part := connection.recv(1 << 16):
            data += part
        connection.close()
        assert b"data: " in data
        assert b"[DONE]" not in data
        found = server.client.completions.create(model=NAME, prompt="ab")
        assert found.choices[0].text == expected_raw("ab").text


def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_BODY_S", 0.2)
    with served() as server:
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret\r\n"
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as slow:
            slow.sendall(head + b"content-length: 50\r\n\r\n{")
            slow.settimeout(10)
            assert slow.recv(99).startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as gone:
            gone.sendall(head + b"content-length: 50\r\n\r\n{")
        name = 'lade_requests_total{path="/v1/completions",status="%d"}'
        wait_for(lambda: server.metrics().get(name % 499) == 1)
        assert server.metrics()[name % 408] == 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long(stream: bool) -> None:
    model = paced_model()
    engine = model.engine
    assert isinstance(engine, PacedEngine)
    engine.step_s = 0.02
    with served(model, gate={"timeout_s": 0.3}) as server:
        options: dict[str, Any] = {
            "model": NAME, "prompt": "ab", "max_tokens": 500, "extra_body": {"ignore_eos": True},
        }  # fmt: skip
        if stream:
            with pytest.raises(openai.APIError, match=r"no whole answer in 0\.3 seconds"):
                for _ in server.client.completions.create(stream=True, **options):
                    pass
        else:
            with pytest.raises(openai.InternalServerError) as caught:
                server.client.completions.create(**options)
            assert (caught.value.status_code, caught.value.code) == (504, "timeout")
        server.until_idle()
        engine.step_s = 0
        assert server.client.completions.create(model=NAME, prompt="ab").choices[0].text


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (EngineError("the engine broke; load it again"), "the engine broke; load it again"),
        (RuntimeError("inner words"), "the server failed on this request; its log says why"),
    ],
)
def test_an_engine_that_fails_fails_one_request(
    error: Exception, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = paced_model()
    engine: Any = model.engine
    step = engine.step
    with served(model) as server:

        def fail(*arguments: Any) -> Any:
            engine.step = step
            raise error

        engine.step = fail
        with pytest.raises(openai.InternalServerError) as caught:
            server.client.completions.create(model=NAME, prompt="ab")
        assert sentence in str(caught.value)
        assert "inner words" not in str(caught.value)
        assert ("inner words" in caplog.text) == isinstance(error, RuntimeError)
        engine.step = fail
        with pytest.raises(openai.APIError, match=sentence):
            for _ in server.client.completions.create(model=NAME, prompt="ab", stream=True):
                pass
        found = server.client.completions.create(model=NAME, prompt="ab")
        assert found.choices[0].text == expected_raw("ab").text


def test_a_model_without_a_template_still_completes() -> None:
    engine = OpinionatedEngine(Script(), capacity=CAPACITY)
    with served(scripted_model(engine=engine, template=None)) as server:
        with pytest.raises(openai.BadRequestError, match="no chat template"):
            server.client.chat.completions.create(model=NAME, messages=CHAT)
        assert server.client.completions.create(model=NAME, prompt="ab").choices[0].text
