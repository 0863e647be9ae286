"""A model inside an application: one model, one lock, answers that can be cut short.

python embed.py BUNDLE
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

from lade_edge.engines.errors import LadeError
from lade_edge.runtime import GenerationConfig, Model, load

CONFIG = GenerationConfig(max_new_tokens=200, reuse_prefix=True)


class Assistant:
    """A conversation that several threads may talk to; a model serves one of them at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._messages: list[dict[str, str]] = []

    def ask(self, text: str, *, wanted: Callable[[], bool] = lambda: True) -> Iterator[str]:
        """Pieces of the answer as they come, until ``wanted`` says no."""
        with self._lock:
            messages = [*self._messages, {"role": "user", "content": text}]
            answer = ""
            with self._model.stream(messages, config=CONFIG) as stream:
                for event in stream:
                    answer += event.text
                    yield event.text
                    if not wanted():
                        break
            self._messages = [*messages, {"role": "assistant", "content": answer}]


def main() -> int:
    """Two questions, the second of which builds on what the cache holds of the first."""
    try:
        assistant = Assistant(load(sys.argv[1]))
        for question in ("Name a planet.", "Name another one."):
            print(f"> {question}")
            for piece in assistant.ask(question):
                print(piece, end="", flush=True)
            print()
    except LadeError as error:  # one sentence that a user can act on
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
