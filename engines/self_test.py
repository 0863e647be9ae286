"""Does a plan say what its graph says? A short greedy continuation, kept in the fingerprint.

Attention kernels have been wrong on single devices while everything else was right, and garbage from
the first token is found by the first user. The reference is the graph a plan was built from, in
float32 on ONNX Runtime. The test feeds the reference's own tokens, so that one token that parts at a
near tie leaves the rest comparable, and counts only positions where the reference's choice was clear.
It goes through a prompt's chunk, a single step, a tree of which some rows are kept, and a chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lade_edge.engines.cache_folder import cache_folder
from lade_edge.engines.errors import EngineError
from lade_edge.engines.protocol import Engine

LENGTH = 32  # tokens of the continuation
# largest difference of a logit, as a share of the row's largest logit: in float16 that of the parity
# check; float32 products may run with the ten bits of TF32
ERROR = {"float32": 5e-3, "float16": 2e-2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """A prompt and what greedy decoding makes of it.

    Attributes:
        prompt: Token ids.
        ids: `LENGTH` token ids that follow.
        margins: Of each id, its logit less the second best, as a share of the row's largest
            magnitude.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    margins: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.prompt or len(self.ids) != LENGTH or len(self.margins) != LENGTH:
            raise ValueError(f"a self-test has a prompt, {LENGTH} ids and as many margins")

    def clear(self, float_type: str) -> list[int]:
        """Positions where an engine of this type has to agree: both logits may be wrong."""
        least = 2 * ERROR[float_type]
        return [at for at, margin in enumerate(self.margins) if margin > least]


def make_self_test(engine: Engine, prompt: Sequence[int]) -> SelfTest:
    """Decode greedily.

    Args:
        engine: The reference, empty; left empty. With room for prompt and continuation, and at least
            two candidates a row.
        prompt: Token ids.
    """
    ids: list[int] = []
    margins: list[float] = []
    result = engine.prefill(np.array(prompt, np.int64))
    while True:
        best, second = (float(logit) for logit in result.top_logits[0, :2])
        largest = float(np.abs(engine.logits(0)).max())
        ids.append(int(result.top_ids[0, 0]))
        margins.append((best - second) / max(largest, 1e-30))
        if len(ids) == LENGTH:
            break
        at = engine.length
        result = engine.step([ids[-1]], [at], np.ones((1, 1), np.bool_), np.zeros(1, np.int64))
        engine.keep([0])
    engine.reset()
    return SelfTest(prompt=tuple(map(int, prompt)), ids=tuple(ids), margins=tuple(margins))


def run_self_test(engine: Engine, test: SelfTest) -> list[int]:
    """What an engine finds best at each position, the reference's tokens before it given.

    Args:
        engine: Empty; left empty.
        test: The continuation.

    Returns:
        `LENGTH` token ids.
    """
    ids = list(test.ids)
    found = [int(engine.prefill(np.array(test.prompt, np.int64)).top_ids[0, 0])]
    found += _chain(engine, ids[:1])
    if engine.spec.max_width >= 4:
        found += _tree(engine, ids[1:4])
    while len(found) < LENGTH:
        width = min(engine.spec.max_width, LENGTH - len(found))
        found += _chain(engine, ids[len(found) - 1 :][:width])
    engine.reset()
    return found


def check_self_test(engine: Engine, test: SelfTest, float_type: str, *, again: str) -> None:
    """Compare an engine with the reference where that was sure.

    Args:
        engine: Empty; left empty. Without room for the test nothing is compared.
        test: From the fingerprint.
        float_type: What the engine computes in, a key of `ERROR`.
        again: The command that builds the plan again.

    Raises:
        EngineError: Naming the first position that differs.
    """
    if engine.spec.capacity < len(test.prompt) + LENGTH:
        return
    found = run_self_test(engine, test)
    clear = test.clear(float_type)
    wrong = [at for at in clear if found[at] != test.ids[at]]
    if wrong:
        at = wrong[0]
        raise EngineError(
            f"this plan says token {found[at]} where its graph says {test.ids[at]}, at token {at + 1} "
            f"of its self-test ({len(wrong)} of {len(clear)} clear ones differ): its kernels are wrong "
            f"on this device or with this library; build it again here: {again}"
        )


def passed_before(key: str) -> bool:
    """Whether a self-test of this key passed on this machine."""
    try:
        return _marker(key).is_file()
    except (OSError, RuntimeError):
        return False


def note_passed(key: str) -> None:
    """Remember that it passed; where nothing can be kept it runs again next time."""
    try:
        path = _marker(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except (OSError, RuntimeError):
        return


def _marker(key: str) -> Path:
    return cache_folder() / f"self-test-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _chain(engine: Engine, tokens: list[int]) -> list[int]:
    width = len(tokens)
    positions = range(engine.length, engine.length + width)
    visible, rows = np.tri(width, dtype=np.bool_), np.arange(width)
    result = engine.step(tokens, list(positions), visible, rows)
    engine.keep(range(width))
    return [int(token) for token in result.top_ids[:, 0]]


def _tree(engine: Engine, tokens: list[int]) -> list[int]:
    """Three tokens with a stranger beside the second, which isn't kept: the others have to move."""
    first, second, third = tokens
    stranger = (second + 1) % engine.spec.vocab_size
    at = engine.length
    visible = np.tri(4, dtype=np.bool_)
    visible[2:, 1] = False
    result = engine.step(
        [first, stranger, second, third],
        [at, at + 1, at + 1, at + 2],
        visible,
        np.array([0, 2, 3]),
    )
    best = [int(token) for token in result.top_ids[:, 0]]
    engine.keep([0, 2, 3])
    return best
