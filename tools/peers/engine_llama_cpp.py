"""llama.cpp through llama-cpp-python, on a GGUF file as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from peers.recorder import Recorder

_CONTEXT = 4096


class Engine:
    """A GGUF file; see `peers.worker.PeerEngine`.

    Prompt lookup drafts ten tokens by default; its documentation advises two on a CPU.
    """

    packages = ("llama-cpp-python",)
    modes = ("plain", "lookup 2", "lookup 10")

    def __init__(self, path: str, threads: int, ends: list[int]) -> None:
        self._options = {"model_path": path, "n_threads": threads, "n_threads_batch": threads}
        self._models: dict[str, Any] = {}
        for mode in self.modes:
            _, _, drafts = mode.partition(" ")
            if drafts:
                draft = LlamaPromptLookupDecoding(num_pred_tokens=int(drafts))
                # without room for all logits it fails beyond one batch of tokens
                self._models[mode] = self._open(n_ctx=_CONTEXT, draft_model=draft, logits_all=True)
            else:
                self._models[mode] = self._open(n_ctx=_CONTEXT)

    def _open(self, **options: Any) -> Any:
        return Llama(**self._options, **options, verbose=False)

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        model = self._models[mode]
        model.reset()
        for token in model.generate(ids, temp=0.0, reset=True):
            if recorder.add([token]):
                break

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        if "scoring" not in self._models:
            self._models["scoring"] = self._open(n_ctx=512, logits_all=True)
        model = self._models["scoring"]
        model.reset()
        model.eval(ids)
        return np.array(model.scores[: len(ids)])
