"""A tiny random Llama as a GGUF file, with a byte-level tokenizer in its metadata."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, FEED_FORWARD, LAYERS = 32, 4, 2, 64, 2


def save_tiny_gguf(path: Path, types: dict[str, str] | None = None) -> Path:
    """Write the file.

    Args:
        path: Where to.
        types: Tensor types by the end of a matrix' name, e.g. ``{"attn_q": "Q4_1", "": "Q8_0"}``, the
            first that fits; None stores everything in float32.
    """
    # every byte in GPT-2's spelling, one merge, and the special tokens
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    tokens = [*letters, "ab", "<|endoftext|>", "<|im_end|>"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (len(tokens) - 2) + [3, 3])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 2)
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        kinds = [kind for end, kind in (types or {}).items() if name[:-7].endswith(end)]
        if len(shape) < 2 or not kinds:
            writer.add_tensor(name, values)
            return
        kind = gguf.GGMLQuantizationType[kinds[0]]
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm.weight", HIDDEN)
        add(f"blk.{layer}.ffn_norm.weight", HIDDEN)
        add(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.attn_k.weight", HIDDEN * KV_HEADS // HEADS, HIDDEN)
        add(f"blk.{layer}.attn_v.weight", HIDDEN * KV_HEADS // HEADS, HIDDEN)
        add(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{layer}.ffn_gate.weight", FEED_FORWARD, HIDDEN)
        add(f"blk.{layer}.ffn_up.weight", FEED_FORWARD, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
