"""Which models fit the graph contract, said in one sentence before anything heavy is loaded."""

from __future__ import annotations

from typing import Any

from lade_edge.engines import ExportError

_ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention"})
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional"})
# these change their frequencies, for all positions at once, when a sequence passes a length:
# fixed to what they are below it, and limited to it
_LENGTH_DEPENDENT_ROPE = frozenset({"longrope", "dynamic"})


def check_config(config: Any) -> None:
    """Refuse a model whose layers the graph has no form for.

    Args:
        config: The text config of a causal language model.

    Raises:
        ExportError: Naming the layer type or position encoding.
    """
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _ATTENTION_LAYERS:
            raise ExportError(
                f"{config.model_type} has layers of type {kind}; only full and sliding-window "
                "attention layers can be exported, since any other state can't be rolled back "
                "when a draft is rejected"
            )
    for name in _rope_types(config):
        if name not in _ROPE_TYPES:
            raise ExportError(
                f"{config.model_type} uses rope scaling {name!r}; supported are "
                f"{', '.join(sorted(_ROPE_TYPES))}"
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
    """Keep longrope and dynamic rope at the frequencies they have below their limit."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, dict):
            module.rope_type = {
                layer: "default" if name in _LENGTH_DEPENDENT_ROPE else name
                for layer, name in kind.items()
            }
        elif kind in _LENGTH_DEPENDENT_ROPE:
            module.rope_type = "default"


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]


def _rope_types(config: Any) -> list[str]:
    return [p["rope_type"] for p in _rope_parameters(config) if p.get("rope_type")]
