"""Models the graph has no form for are refused in one sentence, before weights are read.

No folder here holds any weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from lade_edge.engines import ExportError
from lade_edge.export import export_model
from lade_edge.export.layer_probe import probe_layers
from lade_edge.export.loader import load_source
from tiny_models import VOCAB_SIZE, save_config, tiny_config, tiny_model

TWO = {"num_hidden_layers": 2}
RECURRENT = "layers of type linear_attention; only full and sliding-window attention layers"


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("falcon", {**TWO, "alibi": True}, "encodes positions with ALiBi"),
        ("falcon", {**TWO, "alibi": False}, "computes attention in its own way (FalconDecoder"),
        ("bloom", {"n_layer": 2}, "encodes positions with ALiBi"),
        ("mpt", {"n_layers": 2}, "encodes positions with ALiBi"),
        ("gpt_neo", {}, "computes attention in its own way (GPTNeoBlock)"),
        ("mamba", TWO, RECURRENT),
        ("mamba2", TWO, RECURRENT),
        ("rwkv", TWO, "recurrent layers (RwkvBlock)"),
        ("xlstm", TWO, "recurrent layers (xLSTMBlock)"),
        ("lfm2", {**TWO, "layer_types": ["conv", "full_attention"]}, "layers of type conv;"),
        ("jamba", {"num_hidden_layers": 8}, RECURRENT),
        ("falcon_h1", TWO, "layers of type hybrid;"),
        ("recurrent_gemma", {"num_hidden_layers": 3}, RECURRENT),
        ("qwen3_next", {"num_hidden_layers": 4}, RECURRENT),
        ("t5", {}, "encoder-decoder model; expected a decoder-only"),
        ("deepseek_v2", {**TWO, "num_experts_per_tok": 2}, "caches 1 heads of 512 for keys and 1"),
        ("deepseek_v3", {"num_hidden_layers": 4}, "caches 1 heads of 512 for keys and 1 of 64"),
        ("gpt_oss", TWO, "asks its attention for attention sinks (s_aux)"),
        ("llama4_text", {"num_hidden_layers": 4}, "layers of type chunked_attention;"),
        ("gemma4_text", {}, "has layers that differ in shape"),
        ("gemma3n_text", {}, "20 write a KV cache"),
        ("diffllama", TWO, "names 2 layers, of which 4 run through the attention interface"),
        ("phimoe", {**TWO, "sliding_window": 8}, "names 2 sliding-window layers, 0 ask"),
        ("bert", TWO, "lets tokens attend to later ones"),
        ("clip", {}, "is no causal language model that transformers knows"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # configs of odd families warn about their own defaults
def test_refused_by_what_it_is_made_of(
    family: str, changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    config = AutoConfig.for_model(family, **{"vocab_size": VOCAB_SIZE, **changes})
    with pytest.raises(ExportError) as caught:
        load_source(str(save_config(config, tmp_path / family)))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    source = save_config(AutoConfig.for_model("gpt_oss", **TWO), tmp_path / "source")
    with pytest.raises(ExportError, match="attention sinks"):
        export_model(str(source), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_windows_of_several_widths() -> None:
    model = tiny_model(tiny_config("gemma2", layer_types=["sliding_attention"] * 2))
    model.model.layers[1].self_attn.sliding_window = 4
    with pytest.raises(ExportError, match=r"sliding windows of \[4, 8\] tokens"):
        probe_layers(model)


def test_window_that_attention_is_not_told_of() -> None:
    model = tiny_model(tiny_config("gemma2"))
    model.model.layers[0].self_attn.sliding_window = None
    with pytest.raises(ExportError, match="names 1 sliding-window layers, 0 ask"):
        probe_layers(model)


def test_caches_that_differ_between_layers() -> None:
    model = tiny_model(tiny_config("gpt2"))
    attention = model.transformer.h[1].attn
    attention.num_heads, attention.head_dim = 8, 4
    with pytest.raises(ExportError, match=r"caches 8 heads of 4 for keys .* of every layer"):
        probe_layers(model)


def test_head_size_of_no_kernel(tmp_path: Path) -> None:
    from lade_edge.export.grouped_query_attention import use_grouped_query_attention
    from lade_edge.export.tracing import model_spec

    spec = model_spec(tiny_model(tiny_config("mistral", head_dim=12)))
    with pytest.raises(ExportError, match=r"head size of 12, .* use --target canonical"):
        use_grouped_query_attention(None, spec)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_weights_that_are_integers_already(method: str, tmp_path: Path) -> None:
    """Libraries for them ask for still other libraries; the float model is what is wanted."""
    config = tiny_config("llama")
    config.quantization_config = {"quant_method": method, "bits": 4}
    with pytest.raises(ExportError, match=f"quantised by {method}, expected floats; export the"):
        load_source(str(save_config(config, tmp_path / "model")))
