"""Which models fit the graph contract, said in one sentence before weights are read.

Nothing here is a list of model names: what counts is what a config declares and what the model's
modules are made of.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch import nn

from lade_edge.engines import ExportError

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ROPE_TYPES = frozenset(
    {"default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional"}
)
# these change their frequencies, for all positions at once, when a sequence passes a length:
# fixed to what they are below it, and limited to it
_LENGTH_DEPENDENT_ROPE = frozenset({"longrope", "dynamic"})
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WHY_NO_STATE = (
    "only full and sliding-window attention layers can be exported, since any other state can't be "
    "rolled back when a draft is rejected"
)


def check_config(config: Any) -> None:
    """Refuse a model whose config already says that the graph has no form for it.

    Args:
        config: The text config of a language model.

    Raises:
        ExportError: Naming the layer type or position encoding.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ExportError(
            f"{config.model_type} is an encoder-decoder model; expected a decoder-only causal "
            "language model"
        )
    if getattr(config, "is_heterogeneous", False):
        raise ExportError(
            f"{config.model_type} has layers that differ in shape; one head size and one number of "
            "heads for all layers is supported"
        )
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _ATTENTION_LAYERS:
            raise ExportError(f"{config.model_type} has layers of type {kind}; {_WHY_NO_STATE}")
    for name in _rope_types(config):
        if name not in _ROPE_TYPES:
            raise ExportError(
                f"{config.model_type} uses rope scaling {name!r}; supported are "
                f"{', '.join(sorted(_ROPE_TYPES))}"
            )


def check_modules(model: Any) -> None:
    """Refuse a model made of layers that the graph has no form for.

    Args:
        model: Causal language model; weights may be missing (on the meta device).

    Raises:
        ExportError: Naming the module that stands in the way.
    """
    family = model.config.get_text_config().model_type
    for module in model.modules():
        if any(isinstance(child, _CONVOLUTIONS) for child in module.children()):
            raise ExportError(
                f"{family} has convolutional layers ({type(module).__name__}); {_WHY_NO_STATE}"
            )
    if getattr(model, "_is_stateful", False):
        raise ExportError(f"{family} has recurrent layers ({_layer_class(model)}); {_WHY_NO_STATE}")
    if _uses_alibi(model):
        raise ExportError(
            f"{family} encodes positions with ALiBi, a bias on attention scores for which the "
            "graph has no input; models with rotary or learned positions can be exported"
        )
    if not model._can_set_attn_implementation():
        raise ExportError(
            f"{family} computes attention in its own way ({_layer_class(model)}); only models that "
            "go through transformers' attention interface can be exported"
        )


def position_limit(config: Any) -> int:
    """Number of positions the exported graph may be used for.

    Raises:
        ExportError: If the config names none.
    """
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(limit, int) or limit < 1:
        raise ExportError(f"{config.model_type}'s config names no max_position_embeddings")
    for parameters in _rope_parameters(config):
        if parameters.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
    return limit


def freeze_length_dependent_rope(model: Any) -> None:
    """Keep longrope and dynamic rope at the frequencies they have below their limit.

    The module's own frequencies and scale stay; it only stops looking at the sequence length.
    """
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):
            module.rope_type = {
                layer: "default" if name in _LENGTH_DEPENDENT_ROPE else name
                for layer, name in kind.items()
            }
        elif kind in _LENGTH_DEPENDENT_ROPE:
            module.rope_type = "default"


def _layer_class(model: Any) -> str:
    """Class name of the first repeated layer."""
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module):
            return type(module[0]).__name__
    return type(model).__name__


def _uses_alibi(model: Any) -> bool:
    if getattr(model.config, "alibi", True) is False:
        return False
    owners: Iterator[Any] = iter((sys.modules.get(type(model).__module__), model.base_model))
    return any("alibi" in name for owner in owners for name in dir(owner))


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _rope_types(config: Any) -> list[str]:
    return [p["rope_type"] for p in _rope_parameters(config) if p.get("rope_type")]
