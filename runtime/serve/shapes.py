"""Answers in the form OpenAI's clients expect: in one piece, or as server-sent events."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lade_edge.runtime.detokenize import byte_token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from lade_edge.runtime.generation import Event, Generation
    from lade_edge.runtime.logprobs import TokenLogprob
    from lade_edge.runtime.serve.requests import Ask

END_OF_STREAM = b"data: [DONE]\n\n"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


class TokenTexts:
    """Texts of single tokens, for log probabilities.

    Args:
        tokenizer: The model's tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_tokens = byte_token_ids(tokenizer)
        letters = (*range(33, 127), *range(161, 173), *range(174, 256))
        others = [byte for byte in range(256) if byte not in letters]
        # The printable characters that byte-level vocabularies write bytes with (GPT-2's table).
        self._bytes = {chr(byte): byte for byte in letters}
        self._bytes |= {chr(256 + number): byte for number, byte in enumerate(others)}

    def of(self, token: int) -> tuple[str, list[int] | None]:
        """Text of a token and its bytes, None where part of a character can't be told as bytes."""
        if token in self._byte_tokens:
            byte = self._byte_tokens[token]
            return bytes([byte]).decode("utf-8", "replace"), [byte]
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        piece = self._tokenizer.id_to_token(token) or ""
        if _REPLACEMENT in text and all(letter in self._bytes for letter in piece):
            return text, [self._bytes[letter] for letter in piece]
        if piece.startswith("\u2581") and not text.startswith(" "):
            text = " " + text  # decoders strip the space of the very first token
        return text, None if _REPLACEMENT in text else [*text.encode()]


class Shape:
    """The form of one answer. Its methods are called in the order of the answer.

    Args:
        ask: The request.
        model_name: Name of the model.
        texts: Texts of tokens.
    """

    def __init__(self, ask: Ask, model_name: str, texts: TokenTexts) -> None:
        self._ask = ask
        self._texts = texts
        self._kind = "chat.completion" if ask.chat else "text_completion"
        self._common = {
            "id": ("chatcmpl-" if ask.chat else "cmpl-") + uuid.uuid4().hex,
            "created": int(time.time()),
            "model": model_name,
        }
        self._begun = False
        self._offset = 0  # characters of completion tokens told so far

    def event(self, event: Event) -> bytes:
        """What a step added, as events."""
        opening = self._opening()
        choice: dict[str, Any] = {"index": 0, "finish_reason": None, "logprobs": None}
        choice |= {"delta": {"content": event.text}} if self._ask.chat else {"text": event.text}
        if event.logprobs:
            choice["logprobs"] = self._logprobs(event.logprobs)
        elif not event.text:
            return opening
        return opening + self._chunk([choice])

    def end(self, generation: Generation) -> bytes:
        """The end of a stream."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        choice["finish_reason"] = _FINISH_REASONS[generation.finish_reason]
        if self._ask.chat:
            choice["delta"] = {}
        else:
            choice["text"] = ""
        data = self._opening() + self._chunk([choice])
        if self._ask.include_usage:
            data += self._chunk([], usage=_usage(generation))
        return data + END_OF_STREAM

    def whole(self, generation: Generation) -> bytes:
        """The whole answer as one JSON object."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None}
        choice["finish_reason"] = _FINISH_REASONS[generation.finish_reason]
        if self._ask.chat:
            message = {"role": "assistant", "content": generation.text, "refusal": None}
            choice["message"] = message
        else:
            choice["text"] = generation.text
        if self._ask.config.logprobs is not None:
            choice["logprobs"] = self._logprobs(generation.logprobs)
        body = self._common | {"object": self._kind, "choices": [choice]}
        return json.dumps(body | {"usage": _usage(generation)}).encode()

    def _opening(self) -> bytes:
        """A chat's first event, which tells the role."""
        if self._begun or not self._ask.chat:
            return b""
        self._begun = True
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}])

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> bytes:
        kind = self._kind + (".chunk" if self._ask.chat else "")
        body = self._common | {"object": kind, "choices": choices}
        if self._ask.include_usage:
            body |= {"usage": usage}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    def _logprobs(self, scored: Sequence[TokenLogprob]) -> dict[str, Any]:
        if self._ask.chat:
            return {"content": [self._chat_logprob(one) for one in scored], "refusal": None}
        tokens = [self._texts.of(one.token)[0] for one in scored]
        offsets = []
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in scored],
            "top_logprobs": [
                {self._texts.of(token)[0]: logprob for token, logprob in reversed(one.top)}
                for one in scored
            ],
            "text_offset": offsets,
        }

    def _chat_logprob(self, one: TokenLogprob) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text, encoded = self._texts.of(token)
            return {"token": text, "logprob": logprob, "bytes": encoded}

        top = [entry(token, logprob) for token, logprob in one.top]
        return entry(one.token, one.logprob) | {"top_logprobs": top}


def _usage(generation: Generation) -> dict[str, Any]:
    prompt, output = generation.prompt_tokens, len(generation.output_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": generation.stats.reused_tokens},
    }
