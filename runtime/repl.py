"""A conversation in the terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from lade_edge.engines.errors import ConfigError, LadeError
from lade_edge.runtime.report import print_statistics
from lade_edge.runtime.settings import described, with_setting

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from lade_edge.runtime.chat_template import Message
    from lade_edge.runtime.config import GenerationConfig
    from lade_edge.runtime.generation import Event, Generation
    from lade_edge.runtime.model import Model

HELP = '''/help           shows this
/reset          forgets the conversation
/stats          shows the figures of the last answer
/set            shows the options that differ from their defaults
/set KEY=VALUE  changes one, e.g. /set temperature=0.8, /set stop=["\\n\\n"], /set seed=null
/save FILE      writes the conversation as JSON
/exit           leaves, and so does Ctrl-D
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one; """ begins and ends a text of
several lines; a space before / makes it part of a message.'''
_BLOCK = '"""'
_PARALLEL = "\x1b[32m{}\x1b[0m"  # green


def converse(
    model: Model,
    config: GenerationConfig,
    *,
    system: str | None = None,
    special_tokens: bool = False,
    show_stats: bool = False,
    color: bool = False,
) -> None:
    """Read messages from stdin and answer them on stdout until the input ends.

    Ctrl-C ends an answer, which stays in the conversation as far as it got. Follow-up turns begin with
    what the KV cache holds of the conversation.

    Args:
        model: Loaded model.
        config: Options of every answer, until the user changes them.
        system: System message of the conversation.
        special_tokens: Special tokens written in a message count as such.
        show_stats: Print figures after each answer.
        color: Colour what came in steps of several tokens.
    """
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() line editing and a history
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # refused as a prompt, in one sentence
    conversation = Conversation(
        model,
        config,
        system=system,
        special_tokens=special_tokens,
        show_stats=show_stats,
        color=color,
    )
    while (text := _ask()) is not None:
        command, _, argument = text.rstrip().partition(" ")
        if command == "/exit":
            return
        try:
            if command.startswith("/") and "\n" not in text:
                conversation.obey(command, argument.strip())
            elif text.strip():
                conversation.answer(text)
        except LadeError as error:
            sys.stderr.write(f"{error}\n")


class Conversation:
    """What was said, and how answers are made. Arguments are those of `converse`."""

    def __init__(
        self,
        model: Model,
        config: GenerationConfig,
        *,
        system: str | None,
        special_tokens: bool,
        show_stats: bool,
        color: bool,
    ) -> None:
        self._model = model
        self._config = config
        self._special_tokens = special_tokens
        self._show_stats = show_stats
        self._color = color
        self._start: list[Message] = (
            [] if system is None else [{"role": "system", "content": system}]
        )
        self._messages = list(self._start)
        self._last: Generation | None = None

    def obey(self, command: str, argument: str) -> None:
        """Run a command.

        Raises:
            ConfigError: If it can't be run.
        """
        if command == "/help":
            _say(HELP + "\n")
        elif command == "/reset":
            self._messages = list(self._start)
        elif command == "/stats":
            if self._last is None:
                raise ConfigError("there is no whole answer yet; ask something first")
            print_statistics(self._last, sys.stdout)
        elif command == "/set":
            if argument:
                self._config = with_setting(self._config, argument)
            _say(described(self._config) + "\n")
        elif command == "/save":
            self._save(argument)
        else:
            raise ConfigError(f"unknown command {command}; /help lists them")

    def answer(self, text: str) -> None:
        """Answer a message; one that can't be answered is forgotten, or it would block all later ones.

        Raises:
            LadeError: If it can't be answered.
        """
        self._messages.append({"role": "user", "content": text})
        try:
            answer = self._generate()
        except LadeError as error:
            self._messages.pop()
            raise ConfigError(f"{error}; /reset starts a new conversation") from error
        self._messages.append({"role": "assistant", "content": answer})

    def _generate(self) -> str:
        text = ""
        stream = self._model.stream(
            self._messages,
            special_tokens=self._special_tokens,
            config=dataclasses.replace(self._config, reuse_prefix=True),
        )
        with stream, _StopKey() as stop:
            try:
                for event in stream:
                    text += event.text
                    _say(painted(event) if self._color else event.text)
                    if stop.pressed:
                        break
                else:
                    self._last = stream.result
            except KeyboardInterrupt:
                stop.pressed = True
        _say("\n")
        if self._show_stats and self._last is not None and not stop.pressed:
            print_statistics(self._last)
        return text

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError("/save needs the name of a file; write it behind the command")
        content = json.dumps({"messages": self._messages}, ensure_ascii=False, indent=2)
        try:
            Path(name).write_text(content + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{name} can't be written ({reason}); name another file") from error


class _StopKey:
    """Notes Ctrl-C between two steps, where the cache stays of use; a second one interrupts.

    Attributes:
        pressed: Whether it was pressed.
    """

    def __init__(self) -> None:
        self.pressed = False
        self._can_listen = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> _StopKey:
        if self._can_listen:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._can_listen:
            signal.signal(signal.SIGINT, self._previous)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


def painted(event: Event) -> str:
    """The text of an event, in colour if its step gave several tokens."""
    several = len(event.ids) > 1 and event.text
    return _PARALLEL.format(event.text) if several else event.text


def _ask() -> str | None:
    """The next message, None at the end of the input; Ctrl-C drops what was begun."""
    lines: list[str] = []
    try:
        line = input("> ")
        if line.lstrip().startswith(_BLOCK):
            line = line.lstrip().removeprefix(_BLOCK)
            while not line.rstrip().endswith(_BLOCK):
                lines.append(line)
                line = input(". ")
            lines.append(line.rstrip().removesuffix(_BLOCK))
            return "\n".join(lines).strip("\n")
        while line.endswith("\\"):
            lines.append(line.removesuffix("\\"))
            line = input(". ")
        return "\n".join([*lines, line])
    except KeyboardInterrupt:
        _say("\n")
        return ""
    except EOFError:
        _say("\n")
        return "\n".join(lines) if lines else None


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
