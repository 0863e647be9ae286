"""A GGUF file as a Hugging Face folder in float32: what the peers' own converters read.

python -m peers.source FILE.gguf FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    where = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype="float32", **where)
    model.hf_quantizer = None  # the weights are plain float32 by now, but it won't save them so
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(folder)


if __name__ == "__main__":
    main()
