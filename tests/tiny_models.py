"""Random models of every family, small enough to export in seconds, on disk as users have them.

Weights are large, norms and biases random: a token moved by one position, a hole in a mask or a
wrong window changes the logits by far more than rounding does.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 128
WINDOW = 8
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
_GPT2 = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "num_key_value_heads": 4,
    "n_positions": 128,
    "tie_word_embeddings": True,
}
_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
}

# the differences from `_BASE` that make a family what it is
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 16},
    "qwen2": {
        **_MIXED,
        "layer_types": ["full_attention", "sliding_attention"],
        "use_sliding_window": True,
        "max_window_layers": 1,
        "tie_word_embeddings": True,
    },
    "qwen3": {"head_dim": 16, "attention_bias": True},
    "mistral": {"head_dim": 16, "sliding_window": WINDOW},
    "phi": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                "partial_rotary_factor": 0.5}},
    "phi3": {"sliding_window": WINDOW},
    "gemma": {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True},
    "gemma2": {**_MIXED, "head_dim": 16, "tie_word_embeddings": True, "query_pre_attn_scalar": 24,
               "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
    "gemma3_text": {**_MIXED, "head_dim": 16, "tie_word_embeddings": True,
                    "query_pre_attn_scalar": 24, "rope_parameters": _GEMMA3_ROPE},
    "smollm3": {"no_rope_layers": [0, 1], "attention_bias": True},
    "olmo2": {"attention_bias": True},
    "granite": {"attention_bias": True, "mlp_bias": True, "embedding_multiplier": 3.0,
                "logits_scaling": 2.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2},
    "stablelm": {"use_qkv_bias": True, "qk_layernorm": True,
                 "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                     "partial_rotary_factor": 0.25}},
    "gpt2": _GPT2,
    "opt": {"ffn_dim": 48, "num_key_value_heads": 4, "word_embed_proj_dim": 32, "tie_word_embeddings": True},
    "starcoder2": {"sliding_window": WINDOW, "use_bias": True, "tie_word_embeddings": True},
    "cohere": {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True},
    "exaone4": {**_MIXED, "head_dim": 16},
    "glm4": {"head_dim": 16, "attention_bias": True},
    "gpt_neox": {"attention_bias": True, "num_key_value_heads": 4},
    "qwen3_moe": {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2,
                  "moe_intermediate_size": 16, "decoder_sparse_step": 1, "mlp_only_layers": [1],
                  "norm_topk_prob": True},
}  # fmt: skip


def tiny_config(family: str, **changes: Any) -> Any:
    """Config of a tiny model."""
    settings = {**_BASE, **FAMILIES.get(family, {}), **changes}
    return AutoConfig.for_model(family, **copy.deepcopy(settings))


def tiny_model(config: Any, seed: int = 0) -> Any:
    """A random model of this config, float32, in eval mode."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim < 2:
                weight.add_(0.3 * noise)
            else:
                weight.copy_(noise * 1.6 / weight.shape[-1] ** 0.5)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer with one word per id."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{i}": i for i in range(3, VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def save_model(model: Any, folder: Path) -> Path:
    """Write a model folder with weights and tokenizer."""
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def save_config(config: Any, folder: Path) -> Path:
    """Write a model folder that has no weights."""
    config.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    path = folder / "config.json"
    content = json.loads(path.read_text())
    content.setdefault("architectures", [])
    path.write_text(json.dumps(content))
    return folder
