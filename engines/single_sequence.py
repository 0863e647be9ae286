"""What every engine keeps of its one sequence, apart from the library that runs the steps."""

from __future__ import annotations

from lade_edge.engines.errors import CapacityError
from lade_edge.engines.protocol import EngineSpec


class SingleSequence:
    """Length, timing and limits of an engine; the base of the adapters.

    An adapter sets ``_spec`` first, adds to ``_length`` what it commits, and notes in ``_run_s`` how
    long its library ran.
    """

    _spec: EngineSpec
    _length = 0
    _run_s = 0.0

    @property
    def spec(self) -> EngineSpec:
        """The fixed facts of this engine."""
        return self._spec

    @property
    def length(self) -> int:
        """Committed slots."""
        return self._length

    @property
    def run_s(self) -> float:
        """Seconds of the last step or prefill inside the engine library."""
        return self._run_s

    def reset(self, length: int = 0) -> None:
        """Trim to ``length`` committed slots."""
        if not 0 <= length <= self._length:
            raise ValueError(f"can't trim {self._length} committed slots to {length}")
        self._length = length

    def _check_room(self, num_tokens: int) -> None:
        """Refuse a prefill of nothing, or of more than the capacity leaves.

        Raises:
            CapacityError: If it doesn't fit.
            ValueError: If there are no tokens.
        """
        if num_tokens < 1:
            raise ValueError("a prefill has at least one token")
        if self._length + num_tokens > self._spec.capacity:
            raise CapacityError(
                f"{num_tokens} tokens after {self._length} committed ones don't fit the capacity "
                f"of {self._spec.capacity}; raise --capacity or shorten the prompt"
            )
