"""``lade-run``: generate text with an exported model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines.command import CommandParser, run_command
from lade_edge.engines.errors import ConfigError
from lade_edge.engines.opening import DEVICES
from lade_edge.engines.protocol import WIDEST_STEP
from lade_edge.runtime.config import COSTS, DEVICE_SHAPES, MODES, GenerationConfig

if TYPE_CHECKING:
    from lade_edge.runtime.generation import Generation
    from lade_edge.runtime.model import Model

PROGRAM = "lade-run"

_FILTERS = ("top_k", "top_p", "min_p", "typical_p")
_SAMPLING: tuple[tuple[str, type, str, str], ...] = (
    ("temperature", float, "T", "draw tokens after dividing logits by T; 0 takes the likeliest"),
    ("top_k", int, "K", "draw among the K best tokens, 0 for all"),
    ("top_p", float, "P", "draw among the fewest best tokens with probability P, 1 for all"),
    ("min_p", float, "P", "draw among tokens with P times the best one's probability, 0 for all"),
    ("typical_p", float, "P", "draw among tokens of usual surprise with probability P, 1 for all"),
    ("repetition_penalty", float, "X", "scale logits of tokens in prompt and output, 1 for none"),
    ("presence_penalty", float, "X", "take X off logits of tokens in the output"),
    ("frequency_penalty", float, "X", "take X off them for each time they came"),
    ("no_repeat_ngram_size", int, "N", "never repeat N tokens in a row, 0 for no such rule"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: Arguments, those of the process if None.

    Returns:
        0, 1 after an error the user can mend, 130 after Ctrl-C.

    Raises:
        SystemExit: With 2 after wrong usage, 0 after ``--help`` and ``--version``.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    return run_command(PROGRAM, lambda: _run(arguments, parser))


def build_parser() -> argparse.ArgumentParser:
    """The command line as an argparse parser."""
    defaults = GenerationConfig()
    parser = CommandParser(
        prog=PROGRAM,
        description="Generate text with an exported model, by lookahead decoding.",
    )
    parser.add_argument(
        "--engine", required=True, metavar="PATH", help="bundle folder, a graph in one, or a plan"
    )
    parser.add_argument(
        "--device", choices=DEVICES, default=DEVICES[0],
        help="provider of ONNX Runtime; a TensorRT plan knows its own (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="T", help="CPU threads (default: engine's)")
    parser.add_argument(
        "--capacity", type=int, metavar="C", help="tokens of prompt and output (default: bundle's)"
    )

    prompt = parser.add_argument_group("prompt")
    prompt.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="text; without it, --file or stdin is read"
    )
    prompt.add_argument(
        "--file", metavar="FILE", help="read the prompt from FILE (its last newline doesn't count)"
    )
    prompt.add_argument("--system", metavar="TEXT", help="system message (default: none)")
    prompt.add_argument(
        "--raw", action="store_true", help="take the prompt as it is, without the chat template"
    )
    prompt.add_argument(
        "--special-tokens",
        action="store_true",
        help="special tokens written in the prompt count as such (default: they are text)",
    )
    prompt.add_argument(
        "--chat", action="store_true", help="converse: /help lists commands; Ctrl-C stops an answer"
    )

    decoding = parser.add_argument_group("decoding")
    decoding.add_argument(
        "--mode",
        choices=MODES,
        help="auto: as many tokens a step as pay on this device, measured once; exact: the same, "
        "bit-identical to --mode plain --min-width 2; lookahead: fixed W, N, G; plain: one token a "
        "step (default: auto, or lookahead if W, N or G is given)",
    )
    for name, letter, meaning in (
        ("window", "W", "columns of the Jacobi window, 0 for none"),
        ("ngram", "N", "length of an n-gram, 2 or more"),
        ("guesses", "G", "n-grams tried per step, 0 for none"),
    ):
        values = ", ".join(f"{getattr(s, name)} on {d}" for d, s in DEVICE_SHAPES.items())
        decoding.add_argument(
            f"--{name}", type=int, metavar=letter, help=f"{meaning} (default: {values})"
        )
    decoding.add_argument(
        "--max-width", type=int, metavar="T", help="widest step of auto and exact (default: 32)"
    )
    decoding.add_argument(
        "--min-width",
        type=int,
        metavar="T",
        default=defaults.min_width,
        help="narrowest step, padded if need be (default: %(default)s)",
    )
    decoding.add_argument(
        "--cost",
        choices=COSTS,
        default=defaults.cost,
        help="what a slot costs in auto and exact: as measured, or nothing (default: %(default)s)",
    )
    decoding.add_argument(
        "--pool",
        metavar="FILE",
        help="draft in auto and exact from the texts of earlier runs too, which FILE keeps "
        "(default: none)",
    )
    decoding.add_argument(
        "-n",
        "--max-new-tokens",
        type=int,
        metavar="COUNT",
        default=defaults.max_new_tokens,
        help="tokens to generate at most (default: %(default)s)",
    )
    decoding.add_argument(
        "--min-new-tokens",
        type=int,
        metavar="COUNT",
        default=defaults.min_new_tokens,
        help="tokens before an end token may come (default: %(default)s)",
    )
    decoding.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        default=[],
        help="end before TEXT; may be given several times (default: none)",
    )
    decoding.add_argument("--ignore-eos", action="store_true", help="go on after an end token")

    sampling = parser.add_argument_group(
        "sampling", "Without a temperature the likeliest token is taken, after penalties and bias."
    )
    for name, kind, letter, meaning in _SAMPLING:
        sampling.add_argument(
            f"--{name.replace('_', '-')}",
            type=kind,
            metavar=letter,
            help=f"{meaning} (default: {getattr(defaults, name)})",
        )
    sampling.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID=VALUE",
        default=[],
        help="add VALUE to the logit of token ID, -inf bans it; may be given several times "
        "(default: none)",
    )
    sampling.add_argument(
        "--seed",
        type=int,
        metavar="SEED",
        help="seed of all draws (default: 0, or a fresh one with a temperature; see --stats)",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--stats", action="store_true", help="print a table of figures to stderr")
    output.add_argument("--json", action="store_true", help="print one JSON object, don't stream")
    output.add_argument(
        "--color", action="store_true", help="colour text that came several tokens a step"
    )
    return parser


def _run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    if arguments.chat:
        for name in ("prompt", "file", "raw", "json"):
            if getattr(arguments, name):
                other = "a prompt" if name == "prompt" else f"--{name}"
                parser.error(f"--chat doesn't go with {other}; leave one out")
    elif arguments.prompt is not None and arguments.file is not None:
        parser.error("got a prompt and --file; expected one of them")
    elif arguments.raw and arguments.system is not None:
        parser.error("--system needs the chat template; leave out --raw or --system")
    elif arguments.color and arguments.json:
        parser.error("--color is for streamed text; leave out --color or --json")
    if arguments.temperature is None:
        for name in _FILTERS:
            if getattr(arguments, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                parser.error(f"{flag} narrows what is drawn; add --temperature or leave it out")
    config = GenerationConfig(
        mode=arguments.mode,
        window=arguments.window,
        ngram=arguments.ngram,
        guesses=arguments.guesses,
        max_width=arguments.max_width,
        min_width=arguments.min_width,
        cost=arguments.cost,
        max_new_tokens=arguments.max_new_tokens,
        min_new_tokens=arguments.min_new_tokens,
        **{
            name: getattr(arguments, name)
            for name, *_ in _SAMPLING
            if getattr(arguments, name) is not None
        },
        logit_bias=dict(arguments.logit_bias),
        seed=arguments.seed,
        stop=tuple(arguments.stop),
        ignore_eos=arguments.ignore_eos,
    )
    prompt = "" if arguments.chat else _prompt(arguments, parser)
    model = _load(arguments, config)
    if arguments.pool is not None:
        model.open_pool(arguments.pool)
    try:
        _generate(model, prompt, config, arguments)
    finally:
        if arguments.pool is not None:
            model.save_pool(arguments.pool)


def _generate(
    model: Model, prompt: str, config: GenerationConfig, arguments: argparse.Namespace
) -> None:
    if arguments.chat:
        from lade_edge.runtime.repl import converse

        converse(
            model,
            config,
            system=arguments.system,
            special_tokens=arguments.special_tokens,
            show_stats=arguments.stats,
            color=arguments.color,
        )
        return

    stream = model.stream(
        prompt,
        raw=arguments.raw,
        system=arguments.system,
        special_tokens=arguments.special_tokens,
        config=config,
    )
    if not arguments.json:
        from lade_edge.runtime.repl import painted

        for event in stream:
            print(painted(event) if arguments.color else event.text, end="", flush=True)
        print()
    generation = stream.result
    if arguments.json:
        print(json.dumps(_as_json(generation), ensure_ascii=False))
    if arguments.stats:
        from lade_edge.runtime.report import print_statistics

        print_statistics(generation)


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return int(token), float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no bias; expected a token id and a number, like 42=-1.5"
        ) from None


def _load(arguments: argparse.Namespace, config: GenerationConfig) -> Model:
    from lade_edge.runtime import model

    widest = max(config.filled(shape).width for shape in DEVICE_SHAPES.values())
    widest = max(widest, config.max_width or 1, config.min_width)
    return model.load(
        arguments.engine,
        threads=arguments.threads,
        device=arguments.device,
        capacity=arguments.capacity,
        max_width=min(max(widest, model.DEFAULT_MAX_WIDTH), WIDEST_STEP),
        progress=report_measuring,
    )


def report_measuring(share: float, program: str = PROGRAM) -> None:
    """One line on a terminal's stderr while step times are measured."""
    if sys.stderr.isatty():
        text = f"{program}: measuring this device once, {share:.0%}"
        print(f"\r{text}" + ("\r" + " " * len(text) + "\r" if share >= 1 else ""), end="",
              file=sys.stderr, flush=True)  # fmt: skip


def _prompt(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    if arguments.prompt is not None:
        text: str = arguments.prompt
    elif arguments.file is not None:
        path = Path(arguments.file)
        try:
            text = _text(path.read_bytes(), str(path))
        except OSError as error:
            raise ConfigError(
                f"{path} can't be read ({error.strerror}); expected a text file with the prompt"
            ) from error
    elif sys.stdin.isatty():
        parser.error("no prompt; expected one as argument, in --file or on stdin")
    else:
        text = _text(sys.stdin.buffer.read(), "stdin")
    if not text:
        raise ConfigError("the prompt is empty; expected at least one character")
    return text


def _text(data: bytes, source: str) -> str:
    try:
        return data.decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{source} is not UTF-8 (byte 0x{data[error.start]:02x} at offset {error.start}); "
            "convert it first, e.g. with iconv"
        ) from error


def _as_json(generation: Generation) -> dict[str, object]:
    shape = asdict(generation.shape) if generation.mode == "lookahead" else {}
    return {
        "text": generation.text,
        "prompt_tokens": generation.prompt_tokens,
        "output_ids": list(generation.output_ids),
        "finish_reason": generation.finish_reason,
        "mode": generation.mode,
        **shape,
        "seed": generation.seed,
        "stats": generation.stats.as_dict(),
    }


if __name__ == "__main__":
    sys.exit(main())
