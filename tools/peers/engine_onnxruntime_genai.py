"""onnxruntime-genai on a folder that its model builder made."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime_genai
from peers.recorder import Recorder

_SPECULATION: dict[str, dict[str, Any]] = {  # as its documentation begins, and its adaptive example
    "n-gram": {"ngram_size": 4, "max_draft_tokens": 4},
    "n-gram adaptive": {
        "ngram_size": 4,
        "max_draft_tokens": 8,
        "ngram_chained_lookup": True,
        "min_adaptive_k": 2,
    },
}


class Engine:
    """A model folder; see `peers.worker.PeerEngine`. Older releases don't speculate."""

    packages = ("onnxruntime-genai", "onnxruntime")

    def __init__(self, path: str, threads: int, ends: list[int]) -> None:
        options = {"intra_op_num_threads": threads}
        config = onnxruntime_genai.Config(path)
        config.overlay(
            json.dumps({"model": {"eos_token_id": ends, "decoder": {"session_options": options}}})
        )
        self._model = onnxruntime_genai.Model(config)
        can_speculate = hasattr(onnxruntime_genai.GeneratorParams, "set_speculative_options")
        self.modes = ("plain", *(_SPECULATION if can_speculate else ()))

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        generator = self._generator(len(ids) + count, _SPECULATION.get(mode, {}))
        generator.append_tokens(np.array([ids], np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            if recorder.add(generator.get_next_tokens()):
                break

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        generator = self._generator(len(ids) + 1, {})
        generator.append_tokens(np.array([ids], np.int32))
        found = np.array(generator.get_output("logits"), np.float32)
        return found.reshape(-1, found.shape[-1])

    def _generator(self, length: int, speculation: dict[str, Any]) -> Any:
        parameters = onnxruntime_genai.GeneratorParams(self._model)
        parameters.set_search_options(max_length=length, do_sample=False)
        if speculation:
            parameters.set_speculative_options(**speculation)
        return onnxruntime_genai.Generator(self._model, parameters)
