"""From a transformers model to the canonical graph: one trace, standard ONNX operators only.

The graph is fixed by the contract: any number of tokens a step, masks and positions as inputs, the
KV cache updated in place, logits and the best few of them for the wanted rows.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir
import torch
from torch.export import Dim

from lade_edge.engines import ExportError, LadeError, ModelSpec
from lade_edge.export.graph_ops import ATTENTION_NAME, ScatterCache, StepMasks, tracing_masks
from lade_edge.export.layer_probe import cache_argument, probe_layers, use_traceable_experts
from lade_edge.export.support import freeze_length_dependent_rope, position_limit

OPSET = 24
TOP_K = 8


def model_spec(model: Any) -> ModelSpec:
    """Read the model's shape from its config and a dry run.

    Args:
        model: Causal language model in eval mode; its attention implementation is set.

    Raises:
        ExportError: If the model doesn't fit the graph contract.
    """
    config = model.config.get_text_config()
    layers = probe_layers(model)
    return ModelSpec(
        architecture=type(model).__name__,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        num_layers=layers.num_layers,
        num_kv_heads=layers.num_kv_heads,
        head_size=layers.head_size,
        max_position=position_limit(config),
        sliding_window=layers.sliding_window,
        top_k=min(TOP_K, config.vocab_size),
    )


class StepGraph(torch.nn.Module):  # type: ignore[misc]
    """The graph contract as a module.

    Args:
        model: Causal language model, float32, eval mode.
        spec: Its shape.
    """

    def __init__(self, model: Any, spec: ModelSpec) -> None:
        super().__init__()
        self.model = model
        self._spec = spec

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attn_mask: torch.Tensor,
        attn_mask_window: torch.Tensor | None,
        write_index: torch.Tensor,
        logit_rows: torch.Tensor,
        k_cache: list[torch.Tensor],
        v_cache: list[torch.Tensor],
    ) -> tuple[Any, ...]:
        """One step: see the graph contract in docs/graph.md."""
        cache = ScatterCache(k_cache, v_cache, write_index)
        masks = StepMasks(self._spec.sliding_window)
        masks.full, masks.window = attn_mask, attn_mask_window
        with tracing_masks(masks):
            logits = self.model(
                input_ids=input_ids,
                position_ids=position_ids,
                attention_mask=attn_mask,
                use_cache=True,
                logits_to_keep=logit_rows,
                **{cache_argument(self.model): cache},
            ).logits
        top_logits, top_ids = torch.topk(logits, self._spec.top_k, dim=-1)
        return logits, top_logits, top_ids, cache.keys, cache.values


def trace(model: Any, spec: ModelSpec) -> ir.Model:
    """Trace the model into an ONNX graph with the contract's names and shapes.

    Args:
        model: Causal language model, float32, eval mode; its attention implementation is set.
        spec: From `model_spec`.

    Returns:
        The raw graph: weights are shared with the model, nothing is fused yet.

    Raises:
        ExportError: Naming what can't be traced.
    """
    freeze_length_dependent_rope(model)
    use_traceable_experts(model)
    model.set_attn_implementation(ATTENTION_NAME)
    arguments, dynamic = _example(spec)
    with _quiet_tracer(), torch.no_grad():
        try:
            program = torch.export.export(
                StepGraph(model, spec).eval(), arguments, dynamic_shapes=dynamic, strict=False
            )
            onnx_program = torch.onnx.export(
                program,
                arguments,
                dynamo=True,
                opset_version=OPSET,
                optimize=False,
                verbose=False,
            )
        except LadeError:
            raise
        except Exception as error:  # torch wraps an error of any depth in types of its own
            causes = _causes(error)
            for cause in causes:
                if isinstance(cause, LadeError):
                    raise cause from error
            reason = str(causes[-1]).strip().splitlines() or [type(causes[-1]).__name__]
            raise ExportError(
                f"{type(model).__name__} can't be traced: {reason[0]}; only models that go "
                "through transformers' attention interface and cache can be exported"
            ) from error
    graph: ir.Model = onnx_program.model
    _name_tensors(graph, spec)
    _forget_origin(graph.graph)
    return graph


@contextlib.contextmanager
def _quiet_tracer() -> Iterator[None]:
    """Keep the tracer's warnings, and its advice on packages it can do without, to itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _causes(error: BaseException) -> list[BaseException]:
    """The error and what led to it, the first failure last."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def _example(spec: ModelSpec) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Example arguments with sizes that meet nowhere else, and which of them are dynamic."""
    tokens, slots, wanted = 6, 41, 3
    cache = [
        torch.zeros(1, spec.num_kv_heads, slots, spec.head_size) for _ in range(spec.num_layers)
    ]
    mask = torch.zeros(1, 1, tokens, slots)
    arguments = (
        torch.zeros(1, tokens, dtype=torch.int64),
        torch.arange(tokens)[None],
        mask,
        mask.clone() if spec.sliding_window else None,
        torch.tensor([3]),
        torch.arange(wanted),
        cache,
        [layer.clone() for layer in cache],
    )
    t, s, r = Dim("T", min=1), Dim("S", min=1), Dim("R", min=1)
    layers = [{2: s}] * spec.num_layers
    window = {2: t, 3: s} if spec.sliding_window else None
    return arguments, ({1: t}, {1: t}, {2: t, 3: s}, window, {}, {0: r}, layers, layers)


def _name_tensors(graph: ir.Model, spec: ModelSpec) -> None:
    layers = range(spec.num_layers)
    inputs = ["input_ids", "position_ids", "attn_mask"]
    inputs += ["attn_mask_window"] if spec.sliding_window else []
    inputs += ["write_index", "logit_rows"]
    outputs = ["logits", "top_logits", "top_ids"]
    for kind in "kv":
        inputs += [f"{kind}_cache.{i}" for i in layers]
        outputs += [f"{kind}_cache_out.{i}" for i in layers]
    symbols: dict[str, str | int] = {}
    for names, values in ((inputs, graph.graph.inputs), (outputs, graph.graph.outputs)):
        if len(names) != len(values):
            raise ExportError(f"the trace has {len(values)} tensors, the contract {len(names)}")
        for name, value in zip(names, values, strict=True):
            shape = _contract_shape(name, spec)
            if value.shape is not None:
                pairs = zip(value.shape, shape, strict=True)
                symbols |= {str(old): _plain(new) for old, new in pairs if not isinstance(old, int)}
            value.name, value.shape = name, shape
    _rename_symbols(graph, symbols)


def _rename_symbols(graph: ir.Model, symbols: dict[str, str | int]) -> None:
    """Let intermediate shapes speak of T, S and R, not of the tracer's own symbols."""
    for node in graph.graph:
        for value in node.outputs:
            if value.shape is not None:
                value.shape = ir.Shape([
                    dim if isinstance(dim, int) else symbols.get(str(dim), str(dim))
                    for dim in value.shape
                ])  # fmt: skip


def _forget_origin(graph: ir.Graph) -> None:
    """Drop the tracer's notes: they hold paths of this machine, and change from run to run."""
    graph.metadata_props.clear()
    for value in (*graph.inputs, *graph.initializers.values()):
        value.metadata_props.clear()
    for node in graph:
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()


def _plain(dim: int | ir.SymbolicDim) -> str | int:
    return dim if isinstance(dim, int) else str(dim)


def _contract_shape(name: str, spec: ModelSpec) -> ir.Shape:
    if "_cache" in name:
        return ir.Shape([1, spec.num_kv_heads, "S", spec.head_size])
    return ir.Shape({
        "input_ids": [1, "T"],
        "position_ids": [1, "T"],
        "attn_mask": [1, 1, "T", "S"],
        "attn_mask_window": [1, 1, "T", "S"],
        "write_index": [1],
        "logit_rows": ["R"],
        "logits": [1, "R", spec.vocab_size],
        "top_logits": [1, "R", spec.top_k],
        "top_ids": [1, "R", spec.top_k],
    }[name])  # fmt: skip
