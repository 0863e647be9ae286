"""The canonical graph with its weights as integers: what an int8 or int4 plan is built from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from lade_edge.engines import Bundle, EngineError, ExportError, Quality, open_engine
from lade_edge.export.build_memory import reference_fits
from lade_edge.export.calibration import (
    CALIBRATION_TEXT,
    HELD_APART_TEXT,
    collect_statistics,
    tokenise,
)
from lade_edge.export.linear_layers import Linear, find_linears, is_head_input
from lade_edge.export.lower_qdq import ColumnWeights, lower_to_qdq, round_columns
from lade_edge.export.quality import check_quality, compare_quality
from lade_edge.export.quantize_weights import BlockWeights, quantize_blocks

QUANTIZED = ("int8", "int4")
BLOCK_SIZE = 64  # along K; TensorRT takes 64 and 128 and wants whole blocks
_SMALL_WEIGHTS = 10_000_000  # bytes: in smaller plans kernels outweigh them
_WIDTH, _CAPACITY = 256, 512  # of the comparison's steps

_Weights = tuple[Linear, BlockWeights | ColumnWeights]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedGraph:
    """A canonical graph in QDQ form.

    Attributes:
        bundle: The graph in float32 arithmetic, on disk.
        layers: Linear layers whose weights are integers.
        blocks: How many of them have blocks of 4 bits; the others have columns of 8.
        quality: What was lost, or None where it couldn't be measured.
        notes: What the user should know, a sentence each.
    """

    bundle: Bundle
    layers: int
    blocks: int
    quality: Quality | None
    notes: tuple[str, ...]


def quantize_for_plan(
    bundle: Bundle,
    folder: Path,
    precision: str,
    calibration_text: Path | None = None,
    *,
    allow_loss: bool = False,
) -> QuantizedGraph:
    """Quantise the weights of a canonical graph and measure what that costs.

    ``int8`` rounds each column to nearest. ``int4`` rounds blocks of 64 with what the layers read in
    mind, which takes a calibration; the LM head and layers whose inputs don't fill whole blocks get 8
    bits.

    Args:
        bundle: A canonical float32 graph.
        folder: Where to write.
        precision: ``int8`` or ``int4``.
        calibration_text: What the model reads while it is calibrated; None takes the exporter's own.
        allow_loss: Keep the graph whatever it lost.

    Raises:
        LadeError: In one sentence, why that can't be done.
    """
    model = ir.load(bundle.graph_path)
    linears = find_linears(model.graph)
    if precision == "int4":
        weights = list(_blocks(bundle, folder, linears, calibration_text or CALIBRATION_TEXT))
    else:
        weights = [(linear, round_columns(linear.matrix())) for linear in linears]
    if not weights:
        raise ExportError(
            f"this model has no linear layer that could be stored in {precision}; use fp16"
        )
    lower_to_qdq(model.graph, weights)
    entry = replace(bundle.graph, file=f"{precision}.onnx", precision=precision)
    data = f"{entry.file}.data"
    ir.save(model, folder / entry.file, external_data=data, size_threshold_bytes=256)
    made = Bundle(
        folder=folder, manifest=replace(bundle.manifest, graphs=(entry,), files={}), graph=entry
    )
    quality, notes = _measure(bundle, made, precision, allow_loss=allow_loss)
    return QuantizedGraph(
        bundle=made,
        layers=len(weights),
        blocks=sum(isinstance(found, BlockWeights) for _, found in weights),
        quality=quality,
        notes=notes,
    )


def growth_note(plan: int, weights: int, halves: int) -> list[str]:
    """What to say of a plan whose integers became floats again in the builder.

    Args:
        plan: Its size in bytes.
        weights: Bytes of the weights as they were handed to the builder.
        halves: Bytes they would take in float16.
    """
    if plan <= (weights + halves) / 2 or halves < _SMALL_WEIGHTS:
        return []
    note = (
        f"the plan is {plan / 1e6:,.0f} MB where its weights are {weights / 1e6:,.0f} MB and in fp16 "
        f"{halves / 1e6:,.0f} MB: this TensorRT seems to have turned integers back into floats, and "
        "--precision fp16 would lose nothing"
    )
    return [note]


def _blocks(bundle: Bundle, folder: Path, linears: list[Linear], text: Path) -> Iterator[_Weights]:
    to_calibrate: dict[str, list[Linear]] = {}
    for linear in linears:
        whole = linear.matrix().shape[0] % BLOCK_SIZE == 0
        if whole and not is_head_input(linear.source) and linear.source.name:
            to_calibrate.setdefault(linear.source.name, []).append(linear)
        else:
            yield linear, round_columns(linear.matrix())
    if not to_calibrate:
        raise ExportError(
            f"no layer's input of this model is a multiple of {BLOCK_SIZE} wide, which int4 blocks "
            "of TensorRT take; use --precision int8"
        )
    # the calibration writes beside its graph, and neither ONNX library follows links to weights
    watched = folder / bundle.graph.file
    for name in (watched.name, f"{watched.name}.data"):
        shutil.copyfile(bundle.folder / name, folder / name)
    spec = bundle.manifest.model
    sequences = tokenise(bundle.folder / "tokenizer.json", text, spec.max_position)
    widths = {name: readers[0].matrix().shape[0] for name, readers in to_calibrate.items()}
    for part in collect_statistics(watched, spec, sequences, widths, with_moments=True):
        for name, statistics in part.items():
            assert statistics.moments is not None
            for linear in to_calibrate[name]:
                matrix = linear.matrix().T
                yield (
                    linear,
                    quantize_blocks(matrix, statistics.moments, 4, BLOCK_SIZE, symmetric=True),
                )
    for name in (watched.name, f"{watched.name}.data"):
        (folder / name).unlink()


def _measure(
    reference: Bundle, made: Bundle, precision: str, *, allow_loss: bool
) -> tuple[Quality | None, tuple[str, ...]]:
    """Both graphs over a text nothing was fitted to, on ONNX Runtime where it can run them."""
    spec = reference.manifest.model
    capacity = min(_CAPACITY, spec.max_position)
    if not reference_fits(reference, made):
        return None, (f"what {precision} costs was not measured: memory is too small for it",)
    try:
        engines = [
            open_engine(bundle, capacity=capacity, max_width=_WIDTH) for bundle in (reference, made)
        ]
    except EngineError as error:
        return None, (f"what {precision} costs in quality was not measured: {error}",)
    held_apart = tokenise(reference.folder / "tokenizer.json", HELD_APART_TEXT, capacity)
    quality = compare_quality(engines[0], engines[1], held_apart)
    warning = check_quality(quality, precision, allow_loss=allow_loss)
    return quality, (warning,) if warning else ()
