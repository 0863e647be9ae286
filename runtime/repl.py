"""A small conversation in the terminal."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from lade_edge.engines.errors import LadeError
from lade_edge.runtime.report import print_statistics

if TYPE_CHECKING:
    from lade_edge.runtime.chat_template import Message
    from lade_edge.runtime.config import GenerationConfig
    from lade_edge.runtime.model import Model

HELP = "/help shows this, /reset forgets the conversation, /exit or Ctrl-D leaves; Ctrl-C stops"


def converse(
    model: Model,
    config: GenerationConfig,
    *,
    system: str | None = None,
    show_stats: bool = False,
) -> None:
    """Read messages from stdin and answer them on stdout until the input ends.

    Ctrl-C ends an answer, which stays in the conversation as far as it got.

    Args:
        model: Loaded model.
        config: Options of every answer.
        system: System message of the conversation.
        show_stats: Print figures after each answer.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and a history
    start: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    messages = list(start)
    while (line := _ask()) is not None:
        command = line.strip()
        if command == "/exit":
            return
        if command == "/reset":
            messages = list(start)
        elif command == "/help":
            _say(HELP + "\n")
        elif command.startswith("/"):
            _say(f"unknown command {command.split()[0]}; {HELP}\n")
        elif command:
            messages.append({"role": "user", "content": line})
            try:
                answer = _answer(model, messages, config, show_stats=show_stats)
            except LadeError as error:
                # A message that can't be answered would block every later one.
                messages.pop()
                sys.stderr.write(f"{error}; /reset starts a new conversation\n")
            else:
                messages.append({"role": "assistant", "content": answer})


def _answer(
    model: Model, messages: list[Message], config: GenerationConfig, *, show_stats: bool
) -> str:
    text = ""
    with model.stream(messages, config=config) as stream:
        try:
            for event in stream:
                text += event.text
                _say(event.text)
        except KeyboardInterrupt:
            _say("\n")
            return text
        _say("\n")
        if show_stats:
            print_statistics(stream.result)
    return text


def _ask() -> str | None:
    """The next line, None at the end of the input; Ctrl-C empties the line."""
    try:
        return input("> ")
    except KeyboardInterrupt:
        _say("\n")
        return ""
    except EOFError:
        _say("\n")
        return None


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
