"""A server in a process of its own: signals, the command line, and many clients at once."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from lade_edge.engines.errors import ManifestError
from lade_edge.runtime import model as model_module
from lade_edge.runtime.model import Model
from lade_edge.runtime.serve import cli
from serving import NAME, paced_model

ROOT = Path(__file__).resolve().parents[3]
Start = Callable[..., "Process"]


class Process:
    def __init__(self, *arguments: str) -> None:
        code = (
            "import signal, sys; "
            # a runner that was started in the background has Ctrl-C ignored, which children inherit
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            f"sys.path.insert(0, {str(ROOT / 'tests')!r}); import serving; serving.main()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(sent)
        err = self.process.communicate(timeout=30)[1]
        return self.process.returncode, err


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def make(*arguments: str) -> Process:
        started.append(Process(*arguments))
        return started[-1]

    yield make
    for process in started:
        process.process.kill()
        process.process.communicate()


def test_an_idle_server_ends_at_once(start: Start) -> None:
    for sent, code in ((signal.SIGTERM, 0), (signal.SIGINT, 1)):
        server = start()
        with server.client() as client:
            assert client.completions.create(model=NAME, prompt="ab").choices[0].text
        began = time.monotonic()
        found, err = server.stop(sent)
        assert time.monotonic() - began < 4
        assert (found == 0) == (code == 0)
        assert code or not err


@pytest.mark.parametrize("enough", [True, False])
def test_work_finishes_or_is_ended_in_the_time_of_grace(start: Start, enough: bool) -> None:
    """Some 90 steps of 10 ms or of 50 ms, with 3 seconds or half a second to go."""
    server = start("--step-ms", "10" if enough else "50", "--grace", "3" if enough else "0.5")
    texts: list[str] = []
    errors: list[openai.APIError] = []

    def ask(*, stream: bool) -> None:
        options: dict[str, Any] = {
            "max_tokens": 90,
            "extra_body": {"ignore_eos": True, "mode": "plain"},
        }
        try:
            with server.client() as client:
                if stream:
                    chunks = client.completions.create(
                        model=NAME, prompt="ab", stream=True, **options
                    )
                    texts.append("".join(chunk.choices[0].text for chunk in chunks))
                else:
                    answer = client.completions.create(model=NAME, prompt="ab", **options)
                    texts.append(answer.choices[0].text)
        except openai.APIError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask, kwargs={"stream": s}) for s in (True, False)]
    for thread in threads:  # one runs, one waits
        thread.start()
        time.sleep(0.2)
    code, err = server.stop()
    for thread in threads:
        thread.join(10)
    assert (code, err) == (0, "")
    if enough:
        assert len(set(texts)) == 1
        assert (len(texts), errors) == (2, [])
    else:
        assert texts == []
        assert len(errors) == 2
        assert all("the server is going down" in str(error) for error in errors)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_many_clients_get_their_own_answers(start: Start) -> None:
    """The load test of tools/load_server.py, for a few seconds."""
    server = start()
    command = [
        sys.executable, str(ROOT / "tools" / "load_server.py"), "--url", server.url,
        "--clients", "24", "--seconds", "4", "--prompts", "12",
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["wrong"] == 0
    assert report["whole"] > 15
    assert report["left"] > 2
    assert report["slow"] > 0
    assert server.stop() == (0, "")


class Loaded:
    """Stands in for `load` and `serve`."""

    def __init__(self) -> None:
        self.model = paced_model()
        self.load_options: dict[str, Any] = {}
        self.served: list[tuple[Any, ...]] = []
        self.serve_options: dict[str, Any] = {}

    def load(self, path: str, **options: Any) -> Model:
        if path == "absent":
            raise ManifestError("absent does not exist")
        self.load_options = options
        return self.model

    def serve(self, *arguments: Any, **options: Any) -> None:
        self.served.append(arguments)
        self.serve_options = options
        options["ready"]()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Loaded:
    from lade_edge.runtime.serve import server

    monkeypatch.delenv(cli.KEY_VARIABLE, raising=False)
    found = Loaded()
    monkeypatch.setattr(model_module, "load", found.load)
    monkeypatch.setattr(server, "serve", found.serve)
    return found


def test_the_command(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--engine", "b", "--port", "0", "--threads", "2"]) == 0
    ((model, _, limits, gate),) = loaded.served
    assert model is loaded.model
    assert (limits.model_name, limits.default_tokens, limits.most_tokens) == ("model", 512, 600)
    assert (limits.mode, limits.reuse_prefix) == (None, True)
    assert (gate.api_key, gate.max_body, gate.timeout_s) == (None, 1 << 20, 600)
    assert loaded.serve_options["max_waiting"] == 64
    assert loaded.serve_options["grace_s"] == 20
    assert loaded.load_options["threads"] == 2
    assert capsys.readouterr().err.startswith("lade-serve: model at http://127.0.0.1:")


def test_the_commands_options(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(cli.KEY_VARIABLE, "of the environment")
    arguments = [
        *("--engine", "b", "--port", "0", "--model-name", "m", "--max-waiting", "0"),
        *("--timeout", "5", "--grace", "0", "--max-body", "99", "--default-max-tokens", "50"),
        *("--max-tokens-limit", "20", "--mode", "plain", "--no-prefix-reuse"),
    ]
    assert cli.main(arguments) == 0
    assert cli.main([*arguments, "--api-key", "given"]) == 0
    (_, _, limits, gate), (*_, other) = loaded.served
    assert (limits.model_name, limits.default_tokens, limits.most_tokens) == ("m", 20, 20)
    assert (limits.mode, limits.reuse_prefix) == ("plain", False)
    assert (gate.api_key, gate.max_body, gate.timeout_s) == ("of the environment", 99, 5)
    assert other.api_key == "given"
    assert (loaded.serve_options["max_waiting"], loaded.serve_options["grace_s"]) == (0, 0)
    capsys.readouterr()
    cli._announce(("0.0.0.0", 80), "m", key=None)
    assert "anybody who reaches 0.0.0.0 can use it" in capsys.readouterr().err
    cli._announce(("::", 80), "m", key="x")
    assert capsys.readouterr().err == "lade-serve: m at http://[::]:80/v1\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--timeout", "0"], "--timeout is 0.0; expected"),
        (["--timeout", "nan"], "--timeout is nan; expected"),
        (["--max-waiting", "-1"], "--max-waiting is -1; expected"),
        (["--api-key", ""], "the API key is empty"),
        (["--port", "70000"], "port 70000 is no port"),
        (["--host", "x" * 80], "can't be opened (Name or service"),
        (["--host", "no.such.host.invalid"], "can't be opened"),
        (["--host", "\udcff"], "the host is '\\udcff'; expected a name or address"),
        (["--host", ""], "the host is ''; expected a name or address"),
        (["--engine", "absent", "--port", "0"], "absent does not exist"),
    ],
)
def test_one_line_and_exit_1(
    loaded: Loaded, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    assert cli.main(["--engine", "b", *arguments]) == 1
    err = capsys.readouterr().err
    assert err.startswith("lade-serve: ")
    assert reason in err
    assert err.count("\n") == 1


def test_a_port_in_use(loaded: Loaded, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert cli.main(["--engine", "b", "--port", str(taken.getsockname()[1])]) == 1
    assert "Address already in use" in capsys.readouterr().err


def test_a_missing_library(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lade_edge.runtime.serve.server", None)
    assert cli.main(["--engine", "b"]) == 1
    assert "pip install 'lade-edge[serve]'" in capsys.readouterr().err


def test_help_needs_no_server() -> None:
    code = (
        "import sys; import lade_edge.runtime.serve.cli as cli; cli.build_parser().format_help();"
        "heavy = {'starlette', 'uvicorn', 'tokenizers', 'anyio', 'asyncio'};"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
