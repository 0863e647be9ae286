"""``lade-serve``: serve an exported model over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import ConfigError
from lade_edge.runtime.cli import report_measuring
from lade_edge.runtime.config import MODES

PROGRAM = "lade-serve"
KEY_VARIABLE = "LADE_API_KEY"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments, those of the process if None.

    Returns:
        0 after SIGTERM, 1 after an error the user can mend, 130 after Ctrl-C.

    Raises:
        SystemExit: With 2 after wrong usage, 0 after ``--help`` and ``--version``.
    """
    arguments = build_parser().parse_args(argv)
    return run_command(PROGRAM, lambda: _serve(arguments))


def build_parser() -> argparse.ArgumentParser:
    """The command line as an argparse parser."""
    parser = CommandParser(
        prog=PROGRAM,
        description="Serve an exported model over HTTP, as OpenAI's clients expect it: "
        "/v1/chat/completions, /v1/completions, /v1/models, /health, /metrics.",
    )
    parser.add_argument(
        "--engine", required=True, metavar="PATH", help="bundle folder, or a graph in one"
    )
    parser.add_argument("--threads", type=int, metavar="T", help="CPU threads (default: engine's)")
    parser.add_argument(
        "--capacity", type=int, metavar="C", help="tokens of prompt and output (default: bundle's)"
    )
    parser.add_argument("--model-name", metavar="NAME", help="what clients call the model (default: the bundle's name)")  # fmt: skip

    network = parser.add_argument_group("network")
    network.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    network.add_argument(
        "--port", type=int, default=8000, help="port, 0 for a free one (default: %(default)s)"
    )
    network.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"key that clients must send (default: that in {KEY_VARIABLE}, or none)",
    )
    network.add_argument(
        "--max-body",
        type=int,
        metavar="BYTES",
        default=1 << 20,
        help="largest body of a request (default: %(default)s)",
    )

    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--max-waiting",
        type=int,
        metavar="COUNT",
        default=64,
        help="requests that may wait for the engine; more get status 429 (default: %(default)s)",
    )
    requests.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        default=600.0,
        help="time of a request, waiting included (default: %(default)g)",
    )
    requests.add_argument(
        "--grace",
        type=float,
        metavar="SECONDS",
        default=20.0,
        help="time that requests get to finish after SIGTERM (default: %(default)g)",
    )
    requests.add_argument(
        "--default-max-tokens",
        type=int,
        metavar="COUNT",
        default=512,
        help="tokens to generate where a request doesn't say (default: %(default)s)",
    )
    requests.add_argument(
        "--max-tokens-limit",
        type=int,
        metavar="COUNT",
        help="most tokens a request may ask for (default: the capacity)",
    )
    requests.add_argument(
        "--mode",
        choices=MODES,
        help="mode of requests that name none, as in lade-run (default: auto)",
    )
    requests.add_argument(
        "--no-prefix-reuse",
        action="store_true",
        help="compute every prompt afresh, so that answers don't depend on earlier requests in the "
        "last bits (default: start from what the KV cache shares with the prompt)",
    )
    return parser


def _serve(arguments: argparse.Namespace) -> None:
    for name, least in (
        ("max_body", 1), ("max_waiting", 0), ("timeout", 0.001), ("grace", 0),
        ("default_max_tokens", 0), ("max_tokens_limit", 1),
    ):  # fmt: skip
        value = getattr(arguments, name)
        if value is not None and not least <= value < 1e9:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {value}; expected a number of at least {least}")
    key = arguments.api_key if arguments.api_key is not None else os.environ.get(KEY_VARIABLE)
    if key == "":
        raise ConfigError("the API key is empty; give one or leave it out")
    try:
        from lade_edge.runtime.serve.app import Gate
        from lade_edge.runtime.serve.requests import Limits
        from lade_edge.runtime.serve.server import open_socket, serve
    except ImportError as error:
        raise ConfigError(
            f"{error.name} is not installed; pip install 'lade-edge[serve]' brings it"
        ) from error
    from lade_edge.runtime import model as model_module

    listener = open_socket(arguments.host, arguments.port)
    try:
        model = model_module.load(
            arguments.engine,
            threads=arguments.threads,
            capacity=arguments.capacity,
            progress=lambda share: report_measuring(share, PROGRAM),
        )
        if arguments.mode in (None, "auto", "exact"):
            model.profile()  # the first request need not wait for it
        most = arguments.max_tokens_limit or model.engine.spec.capacity
        limits = Limits(
            model_name=arguments.model_name or model.name,
            default_tokens=min(arguments.default_max_tokens, most),
            most_tokens=most,
            mode=arguments.mode,
            reuse_prefix=not arguments.no_prefix_reuse,
        )
        gate = Gate(api_key=key, max_body=arguments.max_body, timeout_s=arguments.timeout)
        serve(
            model,
            listener,
            limits,
            gate,
            max_waiting=arguments.max_waiting,
            grace_s=arguments.grace,
            ready=lambda: _announce(listener.getsockname()[:2], limits.model_name, key=key),
        )
    finally:
        listener.close()


def _announce(address: tuple[str, int], name: str, *, key: str | None) -> None:
    host, port = address
    place = f"[{host}]" if ":" in host else host
    print(f"{PROGRAM}: {name} at http://{place}:{port}/v1", file=sys.stderr, flush=True)
    if key is None and host not in _LOOPBACK:
        print(
            f"{PROGRAM}: anybody who reaches {host} can use it; --api-key or {KEY_VARIABLE} asks "
            "for a key",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
