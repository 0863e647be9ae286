"""Which ids the engine's committed slots hold from one request to the next.

A request that begins like the text before it need not run that beginning again. What is left in the
cache is known only where a generation ended or was closed between two steps; after anything else, an
engine's error above all, the cache is emptied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from lade_edge.engines.protocol import Engine


class KeptPrefix:
    """The text in an engine's cache.

    Args:
        engine: The engine; between requests nobody else fills its cache.
    """

    __slots__ = ("_engine", "_ids")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids: Sequence[int] = ()

    def lease(self, prompt: Sequence[int], *, reuse: bool) -> Lease:
        """Give the cache to one request.

        Args:
            prompt: Its token ids.
            reuse: Begin with what the cache shares with the prompt, and leave the text there for the
                next request; else it is empty before and after.
        """
        return Lease(self, prompt, reuse=reuse)

    def take(self, prompt: Sequence[int], *, reuse: bool) -> int:
        """Trim the cache to what it shares with a prompt; its text is unknown from here on.

        Returns:
            Slots that stay, fewer than the prompt has tokens: the last one has to run.
        """
        known, self._ids = self._ids, ()
        shared = 0
        if reuse and self._engine.length == len(known):  # else somebody else has used the engine
            shared = common_length(known, prompt[:-1])
        self._engine.reset(shared)
        return shared

    def leave(self, ids: Sequence[int]) -> None:
        """Remember the text in the cache, or empty the cache if it holds another number of slots."""
        if ids and len(ids) == self._engine.length:
            self._ids = ids
        else:
            self._ids = ()
            self._engine.reset()


class Lease:
    """One request's time with the cache, a context manager that gives the reused slots.

    Attributes:
        ids: To be set: prompt and output; the cache holds all of them but the last.
    """

    __slots__ = ("_kept", "_prompt", "_reuse", "ids")

    def __init__(self, kept: KeptPrefix, prompt: Sequence[int], *, reuse: bool) -> None:
        self._kept = kept
        self._prompt = prompt
        self._reuse = reuse
        self.ids: list[int] = []

    def __enter__(self) -> int:
        return self._kept.take(self._prompt, reuse=self._reuse)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        between_steps = kind is None or issubclass(kind, GeneratorExit)
        self._kept.leave(self.ids[:-1] if self._reuse and between_steps else ())


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for place, (ours, theirs) in enumerate(zip(left, right, strict=False)):
        if ours != theirs:
            return place
    return min(len(left), len(right))
