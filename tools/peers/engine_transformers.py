"""transformers in float32: what all the others are held against in quality."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from peers.recorder import Recorder
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

_DRAFTS = 10  # as its documentation has it


class _Streamer(BaseStreamer):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen_prompt = False

    def put(self, value: Any) -> None:
        if self._seen_prompt:
            self._recorder.add(value.reshape(-1).tolist())
        self._seen_prompt = True

    def end(self) -> None:
        pass


class Engine:
    """A Hugging Face folder; see `peers.worker.PeerEngine`."""

    packages = ("transformers", "torch")
    modes = ("plain", "lookup")

    def __init__(self, path: str, threads: int, ends: list[int]) -> None:
        torch.set_num_threads(threads)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self._ends = ends

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        prompt = torch.tensor([ids])
        self._model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=self._ends,
            pad_token_id=self._ends[0],
            streamer=_Streamer(recorder),
            **({"prompt_lookup_num_tokens": _DRAFTS} if mode == "lookup" else {}),
        )

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        with torch.inference_mode():
            found: npt.NDArray[np.float32] = self._model(torch.tensor([ids])).logits[0].numpy()
        return found
