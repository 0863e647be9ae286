"""The Python interface: load a bundle, generate text."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lade_edge.engines.errors import CapacityError, ConfigError
from lade_edge.runtime.commit import Committer
from lade_edge.runtime.config import FinishReason, GenerationConfig
from lade_edge.runtime.decode import decode
from lade_edge.runtime.detokenize import Detokenizer, byte_token_ids, special_token_ids
from lade_edge.runtime.device_profile import DeviceProfile
from lade_edge.runtime.drafting.history import DraftHistory
from lade_edge.runtime.drafting.history_file import read_pool, write_pool
from lade_edge.runtime.generation import Generation, Stream
from lade_edge.runtime.kept_prefix import KeptPrefix
from lade_edge.runtime.logprobs import LogprobReader
from lade_edge.runtime.modes import prepare
from lade_edge.runtime.profile_cache import ProfileCache
from lade_edge.runtime.profile_measurement import WIDTHS, Progress, measure
from lade_edge.runtime.prompt import Prompt, PromptEncoder
from lade_edge.runtime.sampling import sampler_for
from lade_edge.runtime.statistics import Meter

if TYPE_CHECKING:
    from lade_edge.engines.protocol import Engine
    from lade_edge.runtime.generation import Event

DEFAULT_MAX_WIDTH = 128


class Model:
    """An engine with its tokenizer. Serves one generation at a time.

    Attributes:
        name: Name of the model.
        engine: The engine.
        prompts: Templates and tokenizer.
        weight_bytes: Size of the weights in bytes, None if unknown.

    Args:
        engine: Engine of the model.
        prompts: Encoder of its folder.
        eos: The model's end tokens.
        name: Name for people.
        identity: Tells this model and its settings from others, for measurements that are kept.
        weight_bytes: Size of the weights, None if unknown.
        progress: Told the finished share, 0 to 1, while step times are measured.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: PromptEncoder,
        *,
        eos: frozenset[int],
        name: str = "model",
        identity: str = "",
        weight_bytes: int | None = None,
        progress: Progress = lambda share: None,
    ) -> None:
        self.name = name
        self.weight_bytes = weight_bytes
        self._identity = identity
        self._progress = progress
        self._profile: DeviceProfile | None = None
        self._profile_cache: ProfileCache | None = None
        self._history: DraftHistory | None = None
        self.engine = engine
        self.prompts = prompts
        self._kept = KeptPrefix(engine)
        self._eos = eos
        self._special = special_token_ids(prompts.tokenizer)
        self._byte_tokens = byte_token_ids(prompts.tokenizer)
        self._running: Stream | None = None

    def generate(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special_tokens: bool = False,
        config: GenerationConfig | None = None,
        **options: Any,
    ) -> Generation:
        """Generate to the end. Arguments and errors are those of `stream`."""
        return self.stream(
            prompt,
            raw=raw,
            system=system,
            tools=tools,
            special_tokens=special_tokens,
            config=config,
            **options,
        ).result

    def stream(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special_tokens: bool = False,
        config: GenerationConfig | None = None,
        **options: Any,
    ) -> Stream:
        """Generate step by step. A stream still running on this model is closed first.

        Args:
            prompt: A text, messages, or token ids.
            raw: Take a text as it is, without the chat template.
            system: System message to put before the prompt.
            tools: JSON schemas for the chat template.
            special_tokens: Special tokens written in the prompt count as such; else they are text.
            config: Options; the defaults of `GenerationConfig` if None.
            **options: Fields of `GenerationConfig` that replace those of ``config``.

        Returns:
            An iterator over events, with the result at its end.

        Raises:
            ConfigError: If prompt or options can't be used.
            CapacityError: If the prompt leaves no room for a token.
        """
        settings = dataclasses.replace(config, **options) if config else GenerationConfig(**options)
        settings = settings.seeded()
        spec = self.engine.spec
        shape = settings.shape(spec)
        ids = self.prompts.encode(
            prompt, raw=raw, system=system, tools=tools, special_tokens=special_tokens
        )
        if len(ids) >= spec.capacity:
            raise CapacityError(
                f"the prompt has {len(ids)} tokens and {settings.max_new_tokens} new ones are asked "
                f"for, but the KV cache holds {spec.capacity} in all; shorten the prompt or load "
                "with a larger capacity (--capacity)"
            )
        if not 0 <= min(ids) <= max(ids) < spec.vocab_size:
            raise ConfigError(
                f"the prompt has token ids from {min(ids)} to {max(ids)}; the model knows 0 to "
                f"{spec.vocab_size - 1}"
            )
        if max(settings.logit_bias, default=0) >= spec.vocab_size:
            raise ConfigError(
                f"logit_bias names token {max(settings.logit_bias)}; the model knows 0 to "
                f"{spec.vocab_size - 1}"
            )
        eos = self._eos.union(settings.eos_token_ids)
        ends = frozenset() if settings.ignore_eos else eos
        hidden = eos | self._special if settings.skip_special_tokens else frozenset()
        meter = Meter(len(ids))

        history = self._history

        def finish(events: Sequence[Event], reason: FinishReason) -> Generation:
            output_ids = tuple(token for event in events for token in event.ids)
            if history is not None:
                history.add((*ids, *output_ids))
            return Generation(
                text="".join(event.text for event in events),
                prompt_tokens=len(ids),
                output_ids=output_ids,
                finish_reason=reason,
                mode=settings.decoding,
                shape=shape,
                seed=settings.seed or 0,
                stats=meter.statistics(self._take_in(meter)),
                logprobs=tuple(scored for event in events for scored in event.logprobs),
            )

        room = min(settings.max_new_tokens, spec.capacity - len(ids))
        drafter, layout = prepare(
            settings,
            spec,
            self.profile,
            length=len(ids) + room // 2,
            more_sources=history.sources() if history is not None else (),
            eos=eos,
            stop_tokens=ends,
        )
        if self._running is not None:
            self._running.supersede()
        events = decode(
            self.engine,
            ids,
            drafter=drafter,
            layout=layout,
            committer=Committer(
                Detokenizer(self.prompts.tokenizer, hidden=hidden, byte_tokens=self._byte_tokens),
                prompt_length=len(ids),
                max_new_tokens=settings.max_new_tokens,
                capacity=spec.capacity,
                eos=ends,
                stop=settings.stop,
            ),
            meter=meter,
            lease=self._kept.lease(
                ids, reuse=settings.reuse_prefix and settings.decoding != "exact"
            ),
            sampler=sampler_for(
                settings, ids, self.engine.logits, vocab_size=spec.vocab_size, end_tokens=ends
            ),
            logprobs=None
            if settings.logprobs is None
            else LogprobReader(self.engine.logits, settings.logprobs),
        )
        self._running = Stream(events, finish)
        return self._running

    def _take_in(self, meter: Meter) -> float | None:
        """Correct the step times by those of a finished generation.

        Returns:
            Seconds a plain step would have taken; None if step times were never measured.
        """
        if self._profile is None:
            return None
        length = meter.mean_length
        plain_ms = min(self._profile.at(length).values())
        plain_s = 1e-3 * plain_ms * self._profile.drift(meter.step_s, length)
        self._profile = self._profile.corrected(meter.step_s, length)
        if self._profile_cache is not None:
            self._profile_cache.write(self._profile)
        return plain_s

    def profile(self) -> DeviceProfile:
        """Step times of this engine on this device.

        Measured once, kept in the user's cache, corrected by every later generation.

        A stream still running on this model is closed if a measurement has to be made.
        """
        if self._profile is None:
            widths = [width for width in WIDTHS if width <= self.engine.spec.max_width]
            cache = self._profile_cache = ProfileCache(self.engine, self._identity, widths)
            self._profile = cache.read()
        if self._profile is None:
            if self._running is not None:
                self._running.supersede()
            self._profile = measure(self.engine, widths, self._progress)
            cache.write(self._profile)
        return self._profile

    def open_pool(self, path: str | Path) -> None:
        """Draft from the texts of earlier requests too, those in a file first.

        Without it every request starts fresh. `save_pool` writes what has come together.

        Args:
            path: File that `save_pool` wrote; it may be absent.

        Raises:
            ConfigError: If the file can't be used or belongs to another tokenizer.
        """
        self._history = read_pool(Path(path), self.prompts.tokenizer, self.engine.spec.vocab_size)

    def save_pool(self, path: str | Path) -> None:
        """Write the texts and runners-up of all requests since `open_pool`, and what it had read.

        Raises:
            ConfigError: If no pool was opened or the file can't be written.
        """
        if self._history is None:
            raise ConfigError("no pool is open; call open_pool before the first request")
        write_pool(Path(path), self._history, self.prompts.tokenizer)

    def use_profile(self, profile: DeviceProfile) -> None:
        """Go by these step times, in place of a measurement; they aren't kept."""
        self._profile = profile
        self._profile_cache = None


def load(
    path: str | Path,
    *,
    threads: int | None = None,
    capacity: int | None = None,
    max_width: int = DEFAULT_MAX_WIDTH,
    device: str = "cpu",
    progress: Progress = lambda share: None,
) -> Model:
    """Load a bundle.

    Args:
        path: Bundle folder, a graph file inside one, or a TensorRT plan.
        threads: CPU threads, None for the engine's choice.
        capacity: Tokens of prompt and output together, None for the bundle's value.
        max_width: Widest step to prepare for, in tokens.
        device: ``cpu``, or ``cuda`` or ``tensorrt`` for those providers of ONNX Runtime.
        progress: Told the finished share, 0 to 1, while step times are measured (once a device).

    Returns:
        The loaded model.

    Raises:
        ConfigError: If an argument can't be used.
        ManifestError: If the bundle is missing or damaged.
        EngineError: If the engine can't run here.
    """
    for name, value in (("threads", threads), ("capacity", capacity), ("max_width", max_width)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; expected 1 or more")

    # Kept out of the import of this module: decoding needs no particular engine library.
    from lade_edge.engines import open_bundle, open_engine

    bundle = open_bundle(path)
    prompts = PromptEncoder.from_folder(bundle.folder)
    engine = open_engine(
        bundle, capacity=capacity, max_width=max_width, threads=threads, device=device
    )
    return Model(
        engine,
        prompts,
        eos=frozenset(bundle.manifest.eos_token_ids),
        name=bundle.manifest.name,
        identity=f"{bundle.identity} threads {threads}",
        weight_bytes=bundle.weight_bytes,
        progress=progress,
    )
