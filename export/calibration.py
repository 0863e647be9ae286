"""What goes into every linear layer, and into the KV cache, on a calibration text.

The lowered float32 graph runs once over the text with the layers' inputs as further outputs, so
that a bundle's graph is calibrated like a fresh model, without torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from lade_edge.engines import ConfigError, ExportError, ModelSpec
from lade_edge.engines.ort_session import open_session, value_over
from lade_edge.engines.protocol import BoolArray, Float32Array, Int64Array

TEXTS = Path(__file__).with_name("texts")
CALIBRATION_TEXT = TEXTS / "calibration.txt"
HELD_APART_TEXT = TEXTS / "held_apart.txt"
SEQUENCE = 256  # tokens
_MOST_TOKENS = 8192
_FEWEST_TOKENS = 32
_MOMENTS_BYTES = 1 << 30  # of second moments in memory at once
_LEAST_STARTS = 16  # positions that sequences are run from, to see keys rotated
_SAMPLE_EVERY = 24  # rows
_SAMPLE_ROWS = 128
_LONGEST = 4.0  # row in second moments, in medians
_MASKED = np.float32(-30000)


@dataclass(slots=True)
class InputStatistics:
    """What a value was like over all rows of a text.

    Attributes:
        largest: ``(K,)`` float32, largest magnitude per channel.
        sample: ``(n, K)`` float32, every 24th row of a sequence, of the first 3,000 tokens or so.
        moments: ``(K, K)`` float32, mean of ``x x^T`` with extremely long rows shortened; None where
            it wasn't asked for.
    """

    largest: Float32Array
    sample: Float32Array
    moments: Float32Array | None = None


def tokenise(
    tokenizer_file: Path, text_file: Path, max_position: int, *, longest: int = SEQUENCE
) -> list[Int64Array]:
    """Cut a text into sequences.

    Args:
        tokenizer_file: ``tokenizer.json``.
        text_file: UTF-8 text.
        max_position: Positions of the model.
        longest: Most tokens of a sequence.

    Returns:
        Sequences ``(n,)``, 8192 tokens together at most.

    Raises:
        ConfigError: If the text can't be read or is too short.
    """
    from tokenizers import Tokenizer

    try:
        text = text_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"{text_file} can't be read ({reason}); expected a text file to calibrate with"
        ) from error
    encoding = Tokenizer.from_file(str(tokenizer_file)).encode(text, add_special_tokens=False)
    ids = np.array(encoding.ids[:_MOST_TOKENS], np.int64)
    if len(ids) < _FEWEST_TOKENS:
        raise ConfigError(
            f"{text_file} has {len(ids)} tokens, expected at least {_FEWEST_TOKENS}, better some "
            "thousands; use a longer text"
        )
    length = min(longest, max_position)
    return [ids[start : start + length] for start in range(0, len(ids) - 1, length)]


def collect_statistics(
    graph_file: Path,
    spec: ModelSpec,
    sequences: Sequence[Int64Array],
    widths: dict[str, int],
    *,
    with_moments: bool,
) -> Iterator[dict[str, InputStatistics]]:
    """Run a lowered or canonical float32 graph over sequences and watch values in it.

    Args:
        graph_file: The graph, with its data file beside it, in a folder that may be written to.
        spec: Shape of the model.
        sequences: From `tokenise`.
        widths: Channels K of each value to watch, by its name.
        with_moments: Collect second moments as well.

    Yields:
        Statistics by value, for some of the values at a time: second moments of a large model
        don't fit into memory together.

    Raises:
        ExportError: If a value isn't finite.
    """
    for names in _in_parts(widths, 4 if with_moments else 0):
        runner = _Runner(graph_file, spec, names, max(map(len, sequences)))
        found: dict[str, InputStatistics] = {}
        count = 0
        for sequence in sequences:
            count += len(sequence)
            for name, rows in runner.run(sequence).items():
                _update(found, name, rows, with_moments)
        for name, statistics in found.items():
            if not np.isfinite(statistics.largest).all():
                raise ExportError(
                    f"{name} is not finite on the calibration text; the model can't be quantised"
                )
            if statistics.moments is not None:
                statistics.moments /= count
        yield found


def largest_in_cache(
    graph_file: Path, spec: ModelSpec, sequences: Sequence[Int64Array]
) -> dict[str, Float32Array]:
    """Run a lowered graph with a float32 cache over sequences and look into the cache.

    Keys are kept rotated, and a channel may hold at one position what its partner holds at another. So
    every sequence runs from position 0 and again from others, up to the model's last.

    Args:
        graph_file: As for `collect_statistics`; its weights may be quantised.
        spec: Shape of the model.
        sequences: From `tokenise`.

    Returns:
        By cache input, ``(H_kv, D)`` float32: largest magnitude per channel.
    """
    longest = max(map(len, sequences))
    runner = _Runner(graph_file, spec, [], longest)
    largest: dict[str, Float32Array] = {}
    count = max(len(sequences), _LEAST_STARTS)
    spread = np.linspace(0, spec.max_position - longest, count).astype(int).tolist()
    for sequence, start in [
        *zip(sequences, [0] * len(sequences), strict=True),
        *zip(cycle(sequences), spread, strict=False),
    ]:
        runner.run(sequence, start)
        for name, cache in runner.caches.items():
            found = np.abs(cache[0, :, : len(sequence)]).max(axis=1)
            largest[name] = np.maximum(largest.get(name, found), found)
    return largest


def _in_parts(widths: dict[str, int], bytes_per_moment: int) -> Iterator[list[str]]:
    part: list[str] = []
    room = _MOMENTS_BYTES
    for name, width in widths.items():
        need = bytes_per_moment * width * width
        if part and need > room:
            yield part
            part, room = [], _MOMENTS_BYTES
        part.append(name)
        room -= need
    if part:
        yield part


def _update(
    found: dict[str, InputStatistics], name: str, rows: Float32Array, with_moments: bool
) -> None:
    rows = rows.reshape(-1, rows.shape[-1])
    largest = np.abs(rows).max(axis=0)
    some = rows[::_SAMPLE_EVERY]
    seen = found.get(name)
    if seen is None:
        seen = found[name] = InputStatistics(largest, some)
        if with_moments:
            seen.moments = np.zeros((rows.shape[1],) * 2, np.float32)
    else:
        np.maximum(seen.largest, largest, out=seen.largest)
        if len(seen.sample) < _SAMPLE_ROWS:
            seen.sample = np.concatenate([seen.sample, some])
    if seen.moments is not None:
        rows = _without_extremes(rows)
        seen.moments += rows.T @ rows


def _without_extremes(rows: Float32Array) -> Float32Array:
    """Rows no longer than a few usual ones: a text's first token would outweigh all others."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    limit = _LONGEST * np.median(norms)
    shortened: Float32Array = rows * np.minimum(1, limit / np.maximum(norms, 1e-30))
    return shortened.astype(np.float32, copy=False)


class _Runner:
    """Whole sequences through a lowered graph, each from an empty cache, with values watched."""

    def __init__(self, graph_file: Path, spec: ModelSpec, names: list[str], longest: int) -> None:
        watching = graph_file.with_name(f"watching-{graph_file.name}")
        proto = onnx.load(str(graph_file), load_external_data=False)
        known = {value.name for value in proto.graph.output}
        proto.graph.output.extend(
            onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known
        )
        onnx.save(proto, str(watching))
        try:
            self._session = open_session(watching)
        finally:
            watching.unlink()
        self._names = names
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._window = spec.sliding_window or longest
        self._columns = (
            longest if "write_index" in self._inputs else None
        )  # all slots, or those used
        shape = (1, spec.num_kv_heads, longest, spec.head_size)
        self.caches = {
            f"{kind}_cache.{layer}": np.zeros(shape, np.float32)
            for kind in "kv"
            for layer in range(spec.num_layers)
        }

    def run(self, tokens: Int64Array, start: int = 0) -> dict[str, Float32Array]:
        """Watched values ``(1, n, K)`` of a sequence ``(n,)`` whose first token has this position."""
        length = len(tokens)
        rows = np.arange(length)
        causal = np.tri(length, dtype=np.bool_)
        recent = causal & ~np.tri(length, k=-self._window, dtype=np.bool_)
        feeds: dict[str, npt.NDArray[Any]] = {
            "input_ids": tokens[None],
            "position_ids": start + rows[None],
            "logit_rows": rows,
            "seqlens_k": np.array([length - 1], np.int32),
            "total_length": np.array([length], np.int32),
            "write_index": np.zeros(1, np.int64),
            "attn_mask": _additive(causal, self._columns or length),
            "attn_mask_window": _additive(recent, self._columns or length),
            **self.caches,
        }
        binding = self._session.io_binding()
        bound: list[str] = []
        for name, array in feeds.items():
            if name in self._inputs:
                value = value_over(array)
                binding.bind_ortvalue_input(name, value)
                if name in self.caches:
                    bound.append(name.replace("_cache.", "_cache_out."))
                    binding.bind_ortvalue_output(bound[-1], value)
        for name in self._outputs:
            if name not in bound:
                bound.append(name)
                binding.bind_output(name)
        self._session.run_with_iobinding(binding)
        results = dict(zip(bound, binding.get_outputs(), strict=True))
        return {name: results[name].numpy() for name in self._names}


def _additive(visible: BoolArray, columns: int) -> Float32Array:
    mask = np.full((1, 1, len(visible), columns), _MASKED)
    mask[0, 0, :, : len(visible)][visible] = 0
    return mask
