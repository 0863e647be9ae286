"""Stand-ins for a model: an engine whose text is a function of what each row sees, and tokenizers.

`ScriptedEngine` really keeps slots, and every token it gives depends on the tokens and positions
visible to that row. A wrong mask, position, kept row or trim therefore changes the ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from lade_edge.engines.protocol import (
    BoolArray,
    EngineSpec,
    Float32Array,
    Ids,
    Int64Array,
    StepResult,
)
from lade_edge.runtime.chat_template import ChatTemplate
from lade_edge.runtime.device_profile import DeviceProfile
from lade_edge.runtime.model import Model
from lade_edge.runtime.prompt import PromptEncoder

EOS = 256
BOS = 257
VOCAB_SIZE = 260
LETTERS = tuple(b"abcdefgh ")


@dataclass(frozen=True, kw_only=True)
class Script:
    """The text of a pretend model.

    Attributes:
        alphabet: Tokens of ordinary text; the next one follows from the last two, so text repeats.
        rare: Tokens that only surprises can be.
        surprise: One token in so many follows from everything visible instead.
        salt: Makes another text.
    """

    alphabet: tuple[int, ...] = LETTERS
    rare: tuple[int, ...] = ()
    surprise: int = 6
    salt: int = 0

    def next_token(self, tokens: Int64Array, positions: Int64Array) -> int:
        order = np.argsort(positions, kind="stable")
        seen = np.stack((positions[order], tokens[order]))
        digest = zlib.crc32(seen.tobytes(), self.salt)
        if digest % self.surprise == 0:
            choices = self.alphabet + self.rare
            return choices[digest // self.surprise % len(choices)]
        recent = zlib.crc32(seen[1, -2:].tobytes(), self.salt)
        return self.alphabet[recent % len(self.alphabet)]

    def text(
        self, prompt: Sequence[int], count: int, *, eos: frozenset[int] = frozenset()
    ) -> list[int]:
        """What plain decoding must give, without any engine."""
        ids = list(prompt)
        for _ in range(count):
            array = np.array(ids, dtype=np.int64)
            ids.append(self.next_token(array, np.arange(len(ids), dtype=np.int64)))
            if ids[-1] in eos:
                break
        return ids[len(prompt) :]


@dataclass(frozen=True, kw_only=True)
class Recital(Script):
    """Says a text by heart; a row that doesn't see exactly its beginning says something else.

    Attributes:
        lines: Prompt and output.
    """

    lines: tuple[int, ...] = ()

    def next_token(self, tokens: Int64Array, positions: Int64Array) -> int:
        order = np.argsort(positions, kind="stable")
        count = len(tokens)
        if (
            count < len(self.lines)
            and np.array_equal(positions[order], np.arange(count))
            and tuple(tokens[order].tolist()) == self.lines[:count]
        ):
            return self.lines[count]
        return super().next_token(tokens, positions)


PROFILE = DeviceProfile(
    step_ms={64: {1: 10.0, 2: 10.2, 4: 11.0, 6: 12.5, 8: 15.0, 12: 14.0, 16: 17.0, 32: 30.0}},
    invariant_from=2,
)


class ScriptedEngine:
    """An engine over a `Script` that checks how it is used."""

    def __init__(
        self,
        script: Script | None = None,
        *,
        capacity: int = 128,
        max_width: int = 64,
        max_position: int | None = None,
        plain_width: int = 1,
        device: str = "cpu",
    ) -> None:
        self.script = script or Script()
        self._spec = EngineSpec(
            name="scripted",
            device=device,
            vocab_size=VOCAB_SIZE,
            capacity=capacity,
            max_width=max_width,
            max_position=max_position or capacity,
            top_k=4,
            plain_width=plain_width,
        )
        self._tokens = np.full(capacity + max_width, -1, dtype=np.int64)
        self._positions = np.full(capacity + max_width, -1, dtype=np.int64)
        self._length = 0
        self._width = 0
        self._result: StepResult | None = None
        self.widths: list[int] = []
        self.num_resets = 0

    @property
    def spec(self) -> EngineSpec:
        return self._spec

    @property
    def length(self) -> int:
        return self._length

    @property
    def run_s(self) -> float:
        return 1e-6

    def prefill(self, tokens: Int64Array) -> StepResult:
        count = len(tokens)
        assert count >= 1
        assert self._length + count <= self._spec.capacity
        self._write(tokens, np.arange(self._length, self._length + count))
        self._length += count
        self._width = 0
        return self._results([self._committed()])

    def step(self, tokens: Ids, positions: Ids, visible: BoolArray, rows: Int64Array) -> StepResult:
        width = len(tokens)
        assert 1 <= width <= self._spec.max_width
        tokens, positions = np.asarray(tokens), np.asarray(positions)
        assert tokens.dtype == positions.dtype == rows.dtype == np.int64
        assert tokens.shape == positions.shape == (width,)
        assert visible.shape == (width, width)
        assert visible.dtype == np.bool_
        assert np.array_equal(visible, np.tril(visible)), "a slot sees a later one"
        assert visible.diagonal().all(), "a row without a key gives NaN"
        assert len(rows) >= 1
        assert 0 <= rows.min() <= rows.max() < width
        assert 0 <= tokens.min() <= tokens.max() < self._spec.vocab_size
        assert 0 <= positions.min() <= positions.max() < self._spec.max_position
        assert (positions >= self._length).all()
        self._write(tokens, positions)
        self._width = width
        self.widths.append(width)
        slots = np.arange(self._length, self._length + width)
        return self._results(
            [np.concatenate((self._committed(), slots[visible[row]])) for row in rows.tolist()]
        )

    def logits(self, index: int) -> Float32Array:
        assert self._result is not None
        logits = np.zeros(self._spec.vocab_size, dtype=np.float32)
        logits[self._result.top_ids[index]] = self._result.top_logits[index]
        return logits

    def keep(self, slots: Sequence[int]) -> None:
        last = -1
        for count, slot in enumerate(slots):
            assert count <= slot < self._width
            assert slot > last
            last = slot
            source, target = self._length + slot, self._length + count
            assert self._positions[source] == target, "a kept token stands at another position"
            self._tokens[target] = self._tokens[source]
            self._positions[target] = target
        self._length += len(slots)
        self._width = 0

    def reset(self, length: int = 0) -> None:
        assert 0 <= length <= self._length
        self._length = length
        self._width = 0
        self.num_resets += 1

    def _committed(self) -> Int64Array:
        assert np.array_equal(self._positions[: self._length], np.arange(self._length))
        return np.arange(self._length)

    def _write(self, tokens: Int64Array, positions: Int64Array) -> None:
        self._tokens[self._length : self._length + len(tokens)] = tokens
        self._positions[self._length : self._length + len(tokens)] = positions

    def _results(self, seen: list[Int64Array]) -> StepResult:
        if self._result is not None:
            self._result.top_ids[:] = -1  # whoever still reads the last step's arrays gets nonsense
        best = np.array(
            [self.script.next_token(self._tokens[row], self._positions[row]) for row in seen],
            dtype=np.int64,
        )
        top_ids = (best[:, None] + np.arange(4)) % self._spec.vocab_size
        top_logits = np.tile(np.array([4, 3, 2, 1], dtype=np.float32), (len(seen), 1))
        self._result = StepResult(top_ids, top_logits)
        return self._result


class OpinionatedEngine(ScriptedEngine):
    """Full rows of logits, for sampling: they follow from the last two tokens, or from everything.

    Attributes:
        num_rows_read: Rows of full logits that somebody asked for.
    """

    num_rows_read = 0
    _rows = np.empty((0, VOCAB_SIZE), dtype=np.float32)

    def __init__(self, script: Script | None = None, **limits: Any) -> None:
        super().__init__(script, **limits)
        self._known: dict[int, Float32Array] = {}

    def row(self, tokens: Int64Array, positions: Int64Array) -> Float32Array:
        order = np.argsort(positions, kind="stable")
        seen = np.stack((positions[order], tokens[order]))
        digest = zlib.crc32(seen.tobytes(), self.script.salt)
        if digest % self.script.surprise:
            digest = zlib.crc32(seen[1, -2:].tobytes(), self.script.salt)
        if digest not in self._known:
            self._known[digest] = self._opinion(digest)
        return self._known[digest]

    def _opinion(self, digest: int) -> Float32Array:
        generator = np.random.default_rng(digest)
        row = generator.normal(-9, 1, VOCAB_SIZE).astype(np.float32)
        likely = [*self.script.alphabet, *self.script.rare]
        row[likely] = generator.normal(0, 2, len(likely))
        return row

    def row_after(self, ids: Sequence[int]) -> Float32Array:
        """The logits that follow a text, without any step."""
        return self.row(np.array(ids, dtype=np.int64), np.arange(len(ids), dtype=np.int64))

    def logits(self, index: int) -> Float32Array:
        self.num_rows_read += 1
        row: Float32Array = self._rows[index].view()
        row.flags.writeable = False
        return row

    def _results(self, seen: list[Int64Array]) -> StepResult:
        self._rows[:] = np.nan  # whoever still reads the last step's rows gets nonsense
        self._rows = np.stack([self.row(self._tokens[row], self._positions[row]) for row in seen])
        top_ids = np.argsort(-self._rows, axis=1, kind="stable")[:, :4]
        return StepResult(top_ids, np.take_along_axis(self._rows, top_ids, axis=1))


def byte_letters() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + number) for number, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer: ids 0..255 are the bytes, 256 ends, 257 begins."""
    vocabulary = {letter: byte for byte, letter in enumerate(byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken("<|eos|>", special=True), AddedToken("<|bos|>", special=True)]
    )
    return tokenizer


def fallback_tokenizer(*, strip: bool = True) -> Tokenizer:
    """A sentencepiece-like tokenizer: metaspace words, single bytes for everything else."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "\u2581\u2581"]
    pieces += [*"abcdefgh", *(f"\u2581{letter}" for letter in "abcdefgh")]
    merges = [("\u2581", "\u2581"), *(("\u2581", letter) for letter in "abcdefgh")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=merges,
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    steps: list[decoders.Decoder] = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    return tokenizer


CHAT = (
    "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def scripted_model(
    script: Script | None = None,
    *,
    engine: ScriptedEngine | None = None,
    template: str | None = CHAT,
    capacity: int = 128,
    eos: frozenset[int] = frozenset({EOS}),
) -> Model:
    """A whole model over a script."""
    templates = None if template is None else ChatTemplate({"default": template}, {})
    model = Model(
        engine or ScriptedEngine(script, capacity=capacity),
        PromptEncoder(byte_tokenizer(), templates),
        eos=eos,
    )
    model.use_profile(PROFILE)
    return model
