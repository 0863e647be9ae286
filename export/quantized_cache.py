"""KV cache in int8: ``com.microsoft.GroupQueryAttention`` with a scale per channel of every head.

The kernel stores a step's keys (rotated) and values as ``round(x / scale)`` and multiplies them out
while it reads, so a row's result depends on what it sees and on no companion. The scales are fixed:
what is larger than anything the calibration text left in the cache is cut off there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from lade_edge.engines.protocol import Float32Array
from lade_edge.export.graph_edit import GraphEditor

_LARGEST = 127
_SCALE_INPUTS = 12  # index of the first of two: keys', values'
_CACHE_INPUTS = (3, 4)
_SMALLEST_SCALE = 1e-6  # of a channel that is always zero


def store_cache_as_int8(graph: ir.Graph, largest: Mapping[str, Float32Array]) -> None:
    """Let every attention keep its cache in int8, in place.

    Args:
        graph: Lowered graph.
        largest: By cache input, ``(H_kv, D)`` float32: largest magnitude per channel, from
            `calibration.largest_in_cache`.
    """
    edit = GraphEditor(graph)
    for node in [n for n in graph if n.op_type == "GroupQueryAttention"]:
        scales = []
        for index, output in zip(_CACHE_INPUTS, node.outputs[1:], strict=True):
            cache = node.inputs[index]
            assert cache is not None and cache.name is not None
            scale = np.maximum(largest[cache.name] / _LARGEST, _SMALLEST_SCALE)
            scales.append(edit.floats(f"{cache.name}.scale", scale.reshape(-1)))
            cache.type = output.type = ir.TensorType(ir.DataType.INT8)
        inputs = [*node.inputs, *[None] * (_SCALE_INPUTS - len(node.inputs)), *scales]
        attributes = {name: attribute.value for name, attribute in node.attributes.items()}
        outputs = edit.emit(
            node.op_type,
            inputs,
            {
                **attributes,
                "k_quant_type": "PER_CHANNEL",
                "v_quant_type": "PER_CHANNEL",
                "kv_cache_bit_width": 8,
            },
            domain=node.domain,
            num_outputs=len(node.outputs),
        )
        for old, new in zip(node.outputs, outputs, strict=True):
            edit.replace(old, new)
    edit.finish()
