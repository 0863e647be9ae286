"""One dry run of a model, which tells what its layers cache and how far back they look.

The model runs two tokens with an attention function and a cache that only take notes. It costs
next to nothing, works without weights too (on the meta device), and finds what a config can't be
trusted to say: layers that bypass attention interface or cache, differ in shape, or want more of
their attention than a mask.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, Cache

from lade_edge.engines import ExportError, LadeError
from lade_edge.export.support import freeze_length_dependent_rope

_PROBE_NAME = "lade_probe"
_TOKENS = 2

# what attention implementations are told and may leave alone: none of it changes the result here
_HARMLESS = frozenset({
    "dropout", "is_causal", "position_ids", "cache", "past_key_values", "use_cache", "kwargs",
    "output_attentions", "output_hidden_states", "cache_position", "position_embeddings",
    "return_dict", "num_items_in_batch", "head_mask", "layer_idx", "output_router_logits",
    "logits_to_keep", "max_length_q", "max_length_k", "cu_seq_lens_q", "cu_seq_lens_k",
})  # fmt: skip
_MEANINGS = {"s_aux": "attention sinks", "position_bias": "a bias on attention scores"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """What every layer of a model has in common.

    Attributes:
        num_layers: Layers that own a KV cache.
        num_kv_heads: ``H_kv``.
        head_size: ``D``, of keys and values alike.
        sliding_window: Width in tokens of the windowed layers, or None if there are none.
    """

    num_layers: int
    num_kv_heads: int
    head_size: int
    sliding_window: int | None


def probe_layers(model: Any) -> LayerShape:
    """Run two tokens and read the layers off what they ask for.

    Args:
        model: Causal language model in eval mode; weights may be missing (on the meta device). Its
            attention and experts implementations are set and length-dependent rope is frozen.

    Raises:
        ExportError: Naming what the graph contract has no place for.
    """
    notes = _Notes()
    freeze_length_dependent_rope(model)
    use_traceable_experts(model)
    AttentionInterface.register(_PROBE_NAME, notes.attention)
    model.set_attn_implementation(_PROBE_NAME)
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            model(
                input_ids=torch.zeros(1, _TOKENS, dtype=torch.int64, device=device),
                position_ids=torch.arange(_TOKENS, device=device)[None],
                attention_mask=torch.zeros(1, 1, _TOKENS, _TOKENS, device=device),
                use_cache=True,
                logits_to_keep=1,
                **{cache_argument(model): notes},
            )
    except LadeError:
        raise
    except Exception as error:  # models of any family fail in their own ways
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ExportError(
            f"{type(model).__name__} can't be run step by step: {reason[0]}; only models that go "
            "through transformers' attention interface and cache can be exported"
        ) from error
    return _layer_shape(notes, model.config.get_text_config())


def use_traceable_experts(model: Any) -> None:
    """Let mixtures of experts compute every token for itself, whatever the others chose.

    The other implementations loop over the experts that any token chose, which no graph can. This
    one gathers the weights of each token's experts: memory grows with the width of a step.
    """
    if model._can_set_experts_implementation():
        model.set_experts_implementation("batched_mm")


def cache_argument(model: Any) -> str:
    """Name under which this release's models take a cache: it changed within transformers 5.

    Raises:
        ExportError: If the model takes none.
    """
    names = inspect.signature(type(model).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in names:
            return name
    raise ExportError(f"{type(model).__name__} takes no KV cache; it can't be exported")


def refuse_extras(module: torch.nn.Module, extra: dict[str, Any]) -> None:
    """Refuse what a layer asks of its attention beyond masks, scale and softcap.

    Raises:
        ExportError: Naming it.
    """
    asked = sorted(k for k, v in extra.items() if v is not None and k not in _HARMLESS)
    if asked:
        wanted = ", ".join(f"{_MEANINGS[k]} ({k})" if k in _MEANINGS else k for k in asked)
        raise ExportError(
            f"{type(module).__name__} asks its attention for {wanted}, which the graph contract "
            "has no place for; this model can't be exported"
        )
    if getattr(module, "is_causal", True) is False:
        raise ExportError(
            f"{type(module).__name__} lets tokens attend to later ones; only causal language "
            "models can be exported"
        )


class _Notes(Cache):  # type: ignore[misc]
    """A cache that keeps nothing but the shapes it is given, and the windows attention is."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.shapes: dict[int, tuple[int, int, int, int]] = {}
        self.windows: list[int | None] = []

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Note the shape of a layer's rows."""
        heads = key_states.shape[1], value_states.shape[1]
        self.shapes[layer_idx] = (*heads, key_states.shape[3], value_states.shape[3])
        return key_states, value_states

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Nothing is ever kept."""
        return 0

    def attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        softcap: float | None = None,
        sliding_window: int | None = None,
        **extra: Any,
    ) -> tuple[torch.Tensor, None]:
        """Note a layer's window and return zeros of the right shape."""
        refuse_extras(module, extra)
        self.windows.append(sliding_window)
        batch, heads, tokens, _ = query.shape
        return query.new_zeros(batch, tokens, heads, value.shape[3]), None


def _layer_shape(notes: _Notes, config: Any) -> LayerShape:
    count = config.num_hidden_layers
    if len(notes.windows) != count or sorted(notes.shapes) != list(range(count)):
        raise ExportError(
            f"{config.model_type} names {count} layers, of which {len(notes.windows)} run through "
            f"the attention interface and {len(notes.shapes)} write a KV cache; expected all to do "
            "both"
        )
    odd = next(iter(set(notes.shapes.values()) - {notes.shapes[0]}), notes.shapes[0])
    key_heads, value_heads, key_size, value_size = odd
    if odd != notes.shapes[0] or key_heads != value_heads or key_size != value_size:
        raise ExportError(
            f"{config.model_type} caches {key_heads} heads of {key_size} for keys and "
            f"{value_heads} of {value_size} for values in some layer; expected the same for keys "
            "and values of every layer"
        )
    return LayerShape(
        num_layers=count,
        num_kv_heads=key_heads,
        head_size=key_size,
        sliding_window=_window(notes.windows, config),
    )


def _window(windows: list[int | None], config: Any) -> int | None:
    """The one width of all windowed layers, having checked that the config counts the same."""
    widths = sorted({window for window in windows if window is not None})
    if len(widths) > 1:
        raise ExportError(
            f"layers have sliding windows of {widths} tokens; one width for all windowed layers is "
            "supported"
        )
    found = len(windows) - windows.count(None)
    named = _windowed_layers(config)
    if named is not None and named != found:
        raise ExportError(
            f"{config.model_type} names {named} sliding-window layers, {found} ask their attention "
            "for a window; this model can't be exported"
        )
    return widths[0] if widths else None


def _windowed_layers(config: Any) -> int | None:
    """Number of layers that the config gives a window, or None if it leaves that open."""
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return [*kinds].count("sliding_attention")
    window = getattr(config, "sliding_window", None)
    limit = getattr(config, "max_position_embeddings", None)
    if window is None or limit is None or not getattr(config, "use_sliding_window", True):
        return None
    count: int = config.num_hidden_layers
    return count if window < limit else None
