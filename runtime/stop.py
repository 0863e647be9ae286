"""Stop texts: found in the stream of decoded text, wherever token borders lie."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text that can't be part of a stop text any more.

    Attributes:
        has_stops: Whether there is anything to look for.
        matched: True once a stop text is complete; nothing is released after that.

    Args:
        stops: Texts to look for, none of them empty.
    """

    __slots__ = ("_held", "_stops", "has_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.has_stops = bool(self._stops)
        self.matched = False

    def push(self, text: str) -> str:
        """Take new text, release what is certain.

        If the text completes a stop, everything from the start of the earliest one is dropped.
        """
        if not self._stops or self.matched:
            return "" if self.matched else text
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self.matched = True
            self._held = ""
            return text[: min(starts)]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Release what was held back, at the end of the output."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of ``text`` that is a proper prefix of ``stop``."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
