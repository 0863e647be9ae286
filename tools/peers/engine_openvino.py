"""OpenVINO GenAI on a folder that optimum-intel exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino
import openvino_genai
from peers.recorder import Recorder

_DRAFTS, _LONGEST_MATCH = 5, 3  # of its own prompt lookup sample


class _Streamer(openvino_genai.StreamerBase):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def write(self, token: int | list[int]) -> Any:
        self._recorder.add(token if isinstance(token, list) else [token])
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class Engine:
    """An OpenVINO model folder; see `peers.worker.PeerEngine`."""

    packages = ("openvino", "openvino-genai", "openvino-tokenizers")
    modes = ("plain", "lookup")

    def __init__(self, path: str, threads: int, ends: list[int]) -> None:
        self._path, self._ends = path, set(ends)
        self._options = {"INFERENCE_NUM_THREADS": threads}
        self._pipelines = {
            mode: openvino_genai.LLMPipeline(
                path,
                "CPU",
                **self._options,
                **({"prompt_lookup": True} if mode == "lookup" else {}),
            )
            for mode in self.modes
        }
        self._scoring: Any = None

    def generate(self, mode: str, ids: list[int], count: int, recorder: Recorder) -> None:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = count
        config.do_sample = False
        config.stop_token_ids = self._ends
        if mode == "lookup":
            config.num_assistant_tokens = _DRAFTS
            config.max_ngram_size = _LONGEST_MATCH
        prompt = openvino.Tensor(np.array([ids], np.int64))
        self._pipelines[mode].generate(prompt, config, _Streamer(recorder))

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        if self._scoring is None:
            file = Path(self._path) / "openvino_model.xml"
            compiled = openvino.Core().compile_model(file, "CPU", self._options)
            self._scoring = compiled.create_infer_request()
        self._scoring.reset_state()
        tokens = np.array([ids], np.int64)
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        known = {name for value in self._scoring.model_inputs for name in value.names}
        self._scoring.infer({name: value for name, value in inputs.items() if name in known})
        return np.array(self._scoring.get_tensor("logits").data[0], np.float32)
