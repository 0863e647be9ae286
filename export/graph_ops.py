"""How a transformers model speaks the graph contract while it is traced.

Two plugs, both public extension points of transformers: an attention function that becomes the
ONNX ``Attention`` operator (opset 23) and a cache that becomes ``TensorScatter`` (opset 24). Both
exist in the traced graph only; they compute nothing when run eagerly.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, Cache

from lade_edge.engines import ExportError
from lade_edge.export.layer_probe import refuse_extras

ATTENTION_NAME = "lade"


class StepMasks:
    """The masks of the step being traced, found by the attention function of every layer.

    Attributes:
        full: ``(1, 1, T, S)`` additive mask.
        window: The same cut to the sliding window, or None in a model without such layers.
        window_size: Width of the sliding window, or None.
    """

    full: torch.Tensor
    window: torch.Tensor | None
    window_size: int | None

    def __init__(self, window_size: int | None) -> None:
        self.window_size = window_size
        self.window = None

    def of_layer(self, sliding_window: int | None) -> torch.Tensor:
        """The mask for a layer with this sliding window.

        Raises:
            ExportError: If the layer's window is another than the model's.
        """
        if sliding_window is None:
            return self.full
        if self.window is None or sliding_window != self.window_size:
            raise ExportError(
                f"a layer has a sliding window of {sliding_window} tokens, the model one of "
                f"{self.window_size}; one width for all windowed layers is supported"
            )
        return self.window


_masks: list[StepMasks] = []  # the trace in progress: transformers calls attention as a function


class tracing_masks:  # noqa: N801 - reads as a verb in ``with tracing_masks(...)``
    """Context in which layers being traced find the step's masks."""

    def __init__(self, masks: StepMasks) -> None:
        self._value = masks

    def __enter__(self) -> StepMasks:
        _masks.append(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        _masks.pop()


def attention(
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
    """Emit ``Attention`` over all S slots.

    Args:
        module: The attention layer.
        query: ``(1, H, T, D)``.
        key: ``(1, H_kv, S, D)``, the whole updated cache.
        value: ``(1, H_kv, S, D)``.
        attention_mask: Ignored; the step's own masks apply.
        scaling: Factor on scores; None means ``D ** -0.5``.
        softcap: Tanh bound on scores.
        sliding_window: Width of this layer's window.
        **extra: Anything else a layer hands on.

    Returns:
        ``(1, T, H, D)`` and no weights.

    Raises:
        ExportError: If the layer asks for something that would change the result.
    """
    refuse_extras(module, extra)
    mask = _masks[-1].of_layer(sliding_window)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    attributes: dict[str, Any] = {"scale": scale, "is_causal": 0}
    if softcap is not None:
        attributes["softcap"] = float(softcap)
    out = torch.onnx.ops.symbolic(
        "Attention",
        (query, key, value, mask),
        attributes,
        dtype=query.dtype,
        shape=(*query.shape[:3], value.shape[3]),
        version=24,
    )
    return out.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, attention)


class ScatterCache(Cache):  # type: ignore[misc]
    """A cache whose update is ``TensorScatter`` into buffers that the caller owns.

    Args:
        keys: Per layer ``(1, H_kv, S, D)``; replaced by the updated tensor.
        values: The same for values.
        write_index: ``(1,)`` int64, first slot written.
    """

    def __init__(
        self, keys: list[torch.Tensor], values: list[torch.Tensor], write_index: torch.Tensor
    ) -> None:
        super().__init__(layers=[])
        self.keys = list(keys)
        self.values = list(values)
        self._write_index = write_index

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new rows and return its whole cache."""
        if layer_idx >= len(self.keys):
            raise ExportError(
                f"layer {layer_idx} writes a KV cache, the config names {len(self.keys)} layers"
            )
        self.keys[layer_idx] = self._scatter(self.keys[layer_idx], key_states)
        self.values[layer_idx] = self._scatter(self.values[layer_idx], value_states)
        return self.keys[layer_idx], self.values[layer_idx]

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        """Never consulted: positions and masks are inputs of the graph."""
        return 0

    def _scatter(self, cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if cache.shape[1] != rows.shape[1] or cache.shape[3] != rows.shape[3]:
            raise ExportError(
                f"a layer caches {rows.shape[1]} heads of size {rows.shape[3]}, expected "
                f"{cache.shape[1]} of size {cache.shape[3]}; caches that differ between layers or "
                "between keys and values are not supported"
            )
        return torch.onnx.ops.symbolic(
            "TensorScatter",
            (cache, rows, self._write_index),
            {"mode": "linear", "axis": 2},
            dtype=cache.dtype,
            shape=cache.shape,
            version=24,
        )
