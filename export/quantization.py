"""From a lowered float32 graph to a quantised one: calibrate, rewrite."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from lade_edge.engines import ExportError, ModelSpec
from lade_edge.export.calibration import InputStatistics, collect_statistics, tokenise
from lade_edge.export.gguf_blocks import GgufWeights
from lade_edge.export.linear_layers import (
    Linear,
    find_linears,
    find_token_table,
    is_head_input,
    stored_array,
)
from lade_edge.export.lower_int4 import lower_to_blocks
from lade_edge.export.lower_int8 import lower_to_int8
from lade_edge.export.quantize_weights import BlockWeights, quantize_blocks, round_blocks
from lade_edge.export.rotation import find_rotatable, rotate
from lade_edge.export.smoothing import smooth

BLOCK_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationReport:
    """What became of the layers.

    Attributes:
        layers: Linear layers, siblings merged, LM head included.
        smoothed: Inputs whose outliers moved into the weights (int8).
        rotated: Inputs that are rotated at run time (int8).
        kept: Layers whose integers are the source's own (int4 from GGUF).
    """

    layers: int
    smoothed: int = 0
    rotated: int = 0
    kept: int = 0


def quantize(
    graph_file: Path,
    precision: str,
    spec: ModelSpec,
    tokenizer_file: Path,
    calibration_text: Path,
    gguf_file: Path | None = None,
) -> tuple[ir.Model, QuantizationReport]:
    """Quantise a lowered graph.

    Args:
        graph_file: Lowered float32 graph with its data file, in a folder that may be written to.
        precision: ``int8`` or ``int4``.
        spec: Shape of the model.
        tokenizer_file: The model's ``tokenizer.json``.
        calibration_text: What the model reads while its activations are measured.
        gguf_file: Where the weights came from, if that was a GGUF file.

    Returns:
        The quantised graph and what was done.

    Raises:
        LadeError: In one sentence, why that can't be done.
    """
    model = ir.load(graph_file)
    linears = find_linears(model.graph)
    if not linears:
        raise ExportError(
            f"this model has no linear layer that could be stored in {precision}; use fp16 or fp32"
        )
    task = _Task(model, linears, graph_file, spec, tokenizer_file, calibration_text)
    report = task.to_int8() if precision == "int8" else task.to_int4(gguf_file)
    return model, report


class _Task:
    def __init__(
        self,
        model: ir.Model,
        linears: list[Linear],
        graph_file: Path,
        spec: ModelSpec,
        tokenizer_file: Path,
        calibration_text: Path,
    ) -> None:
        self.graph = model.graph
        self.linears = linears
        self.table = find_token_table(self.graph)
        self._graph_file = graph_file
        self._spec = spec
        self._texts = tokenizer_file, calibration_text

    def to_int8(self) -> QuantizationReport:
        statistics = {}
        for part in self._collect(self.linears, with_moments=False):
            statistics.update(part)
        rotatable = find_rotatable(self.linears, self.table)
        done = smooth(self.graph, self.linears, self.table, statistics, rotatable)
        linears = rotate(self.graph, self.linears, self.table, done.to_rotate)
        lower_to_int8(self.graph, linears, self.table)
        return QuantizationReport(
            layers=len(linears), smoothed=done.smoothed, rotated=len(done.to_rotate)
        )

    def to_int4(self, gguf_file: Path | None) -> QuantizationReport:
        source = GgufWeights(gguf_file) if gguf_file is not None else None
        table, table_kept = self._table_blocks(source)
        tied = self.table.weight if self.table is not None and table is not None else None
        done: dict[str, BlockWeights] = {}
        kept = 0
        to_calibrate = []
        for linear in self.linears:
            matrix = linear.matrix().T
            found = source.find(matrix) if source is not None else None
            if table is not None and linear.weight is tied:
                done[linear.name] = table
                kept += table_kept
            elif found is not None:
                done[linear.name] = found
                kept += 1
            elif is_head_input(linear.source):
                done[linear.name] = round_blocks(matrix, 8, BLOCK_SIZE)
            else:
                to_calibrate.append(linear)
        for part in self._collect(to_calibrate, with_moments=True):
            for linear in to_calibrate:
                seen = part.get(linear.source.name or "")
                if seen is not None and seen.moments is not None:
                    matrix = linear.matrix().T
                    done[linear.name] = quantize_blocks(matrix, seen.moments, 4, BLOCK_SIZE)
        lower_to_blocks(
            self.graph,
            [(linear, done[linear.name]) for linear in self.linears],
            (self.table, table) if self.table is not None and table is not None else None,
        )
        return QuantizationReport(layers=len(self.linears), kept=kept)

    def _table_blocks(self, source: GgufWeights | None) -> tuple[BlockWeights | None, bool]:
        """Token embeddings in 8 bits, and whether they are the source's.

        None where blocks don't fill a row.
        """
        if self.table is None or int(self.table.weight.shape[1]) % BLOCK_SIZE:
            return None, False
        matrix = stored_array(self.table.weight)
        found = source.find(matrix) if source is not None else None
        if found is None or found.offsets is not None:
            return round_blocks(matrix, 8, BLOCK_SIZE), False
        return found.rearranged(8, found.block_size), True

    def _collect(
        self, linears: list[Linear], *, with_moments: bool
    ) -> Iterator[dict[str, InputStatistics]]:
        widths = {n.source.name: n.matrix().shape[0] for n in linears if n.source.name}
        sequences = tokenise(*self._texts, self._spec.max_position)
        yield from collect_statistics(
            self._graph_file, self._spec, sequences, widths, with_moments=with_moments
        )
