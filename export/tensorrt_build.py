"""From a lowered ONNX graph to a plan, with whichever TensorRT is there.

Written against the calls that TensorRT 10.3 to 11 and TensorRT-RTX share: networks are strongly typed,
so precision is in the graph. What a library can do is asked of it, never told by its version.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lade_edge.engines import ConfigError, ExportError
from lade_edge.engines.plan import IN_PLACE, ROWS, PlanProfile
from lade_edge.engines.tensorrt_library import TensorRTLibrary, last_error, make_logger
from lade_edge.engines.tensorrt_refit import lacks

BuildProgress = Callable[[str, int, int], None]
_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderOptions:
    """What to ask of the builder.

    Attributes:
        workspace_mb: Most memory a layer may work in, MB; None leaves it to the library.
        timing_cache: File with measured kernel times, read if it exists and written afterwards.
        hardware_compatible: One plan for all devices from compute capability 8.0.
        version_compatible: A plan that later minor versions of TensorRT run.
        strip_weights: Leave the weights out; they are put back from the ONNX file on the device.
        devices: Targets of TensorRT-RTX as ``sm86``; empty is its portable default.
    """

    workspace_mb: int | None = None
    timing_cache: Path | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False
    strip_weights: bool = False
    devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.workspace_mb is not None and self.workspace_mb < 1:
            raise ConfigError(f"--workspace is {self.workspace_mb} MB, expected at least 1")

    @property
    def words(self) -> tuple[str, ...]:
        """The options as words of a command line."""
        found: list[str] = []
        if self.workspace_mb is not None:
            found += ["--workspace", str(self.workspace_mb)]
        if self.timing_cache is not None:
            found += ["--timing-cache", str(self.timing_cache)]
        for name in ("hardware_compatible", "version_compatible", "strip_weights"):
            found += [f"--{name.replace('_', '-')}"] if getattr(self, name) else []
        for device in self.devices:
            found += ["--device", device]
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltPlan:
    """A plan in memory.

    Attributes:
        content: The serialised engine, a buffer.
        layers: How many layers of each type the parsed network had.
    """

    content: Any
    layers: Counter[str] = field(default_factory=Counter)


def check_options(library: TensorRTLibrary, options: BuilderOptions) -> None:
    """Refuse what this flavour can't do.

    Raises:
        ConfigError: Naming the option, the flavour and what to do.
    """
    if not library.is_rtx:
        if options.devices:
            raise ConfigError(
                f"--device is for TensorRT-RTX; {library.title} builds for the device it runs on, so "
                "build on that machine"
            )
        if options.strip_weights and lacks(library):
            raise ConfigError(
                f"{library.title} has no {lacks(library)}, which puts stripped weights back; drop "
                "--strip-weights"
            )
        for wanted, name in _flags(options):
            if not hasattr(library.module.BuilderFlag, name):
                raise ConfigError(f"{library.title} has no {name}; drop {wanted}")
        return
    advice = {
        "hardware_compatible": "without --device its plans run on any supported RTX device",
        "version_compatible": "build again after an update",
        "strip_weights": "leave it out",
        "timing_cache": "it measures no kernels while building, leave it out",
    }
    for name, instead in advice.items():
        if getattr(options, name):
            raise ConfigError(
                f"{library.title} can't do --{name.replace('_', '-')} on this kind of build; "
                f"{instead}"
            )
    compute_capabilities(library, options.devices)


def compute_capabilities(library: TensorRTLibrary, devices: Sequence[str]) -> tuple[str, ...]:
    """``sm86`` as ``8.6``, each a target of this TensorRT-RTX.

    Raises:
        ConfigError: If the library has no such target.
    """
    known = getattr(library.module, "ComputeCapability", None)
    names = [n for n in getattr(known, "__members__", {}) if n.startswith("SM")]
    for device in devices:
        if device.upper() not in names:
            raise ConfigError(
                f"--device {device} is no target of {library.title}; it has "
                f"{', '.join(name.lower() for name in names) or 'none'} (a Jetson builds with its own "
                "TensorRT)"
            )
    digits = [device.lower().removeprefix("sm") for device in devices]
    return tuple(f"{number[:-1]}.{number[-1]}" for number in digits)


def preferred_forms(library: TensorRTLibrary) -> tuple[str, ...]:
    """Forms to try in order: the in-place one only where its layers exist."""
    network = library.module.INetworkDefinition
    fused = hasattr(network, "add_kv_cache_update") and hasattr(network, "add_attention")
    return (IN_PLACE, ROWS) if fused else (ROWS,)


class PlanBuilder:
    """A parsed graph that can be built.

    Args:
        library: The library.
        onnx: The lowered graph; external data is found beside it.

    Raises:
        ExportError: If the parser refuses the graph; names the operator.
    """

    def __init__(self, library: TensorRTLibrary, onnx: Path) -> None:
        self._library = library
        self._logger = make_logger(library.module)
        trt = library.module
        self._builder = trt.Builder(self._logger)
        self._network = self._builder.create_network(_network_flags(trt))
        self._parser = trt.OnnxParser(self._network, self._logger)
        if not self._parser.parse_from_file(str(onnx)):
            raise ExportError(f"{library.title} can't parse the graph: {self._parse_error()}")
        layers = [self._network.get_layer(i) for i in range(self._network.num_layers)]
        self.layers = Counter(layer.type.name for layer in layers)
        for layer in layers:
            if layer.type.name == "ATTENTION_INPUT":
                # without a fused kernel for this shape it may be built from products and softmax
                layer.__class__ = trt.IAttentionInputLayer
                layer.attention.decomposable = True

    def build(
        self,
        profiles: Sequence[PlanProfile],
        options: BuilderOptions,
        progress: BuildProgress = lambda phase, done, total: None,
    ) -> BuiltPlan:
        """Build the plan.

        Args:
            profiles: Optimisation profiles, in order.
            options: Checked by `check_options`.
            progress: Told phase, steps done and steps in all.

        Raises:
            ExportError: With the builder's last error.
        """
        trt = self._library.module
        config = self._builder.create_builder_config()
        self._configure(config, options)
        for profile in profiles:
            self._add_profile(config, profile)
        monitor = _make_monitor(trt, progress)
        config.progress_monitor = monitor
        cache = self._timing_cache(config, options.timing_cache)
        with _interrupting(monitor):
            content = self._builder.build_serialized_network(self._network, config)
        if monitor.interrupted:
            raise KeyboardInterrupt
        if content is None:
            raise ExportError(self._build_error())
        if cache is not None and options.timing_cache is not None:
            options.timing_cache.write_bytes(bytes(cache.serialize()))
        return BuiltPlan(content=content, layers=self.layers)

    def _configure(self, config: Any, options: BuilderOptions) -> None:
        trt = self._library.module
        for _, name in _flags(options):
            config.set_flag(getattr(trt.BuilderFlag, name))
        if options.hardware_compatible:
            config.hardware_compatibility_level = trt.HardwareCompatibilityLevel.AMPERE_PLUS
        if options.workspace_mb is not None:
            pool = trt.MemoryPoolType.WORKSPACE
            config.set_memory_pool_limit(pool, options.workspace_mb * _MB)
        if options.devices:
            config.num_compute_capabilities = len(options.devices)
            for index, device in enumerate(options.devices):
                target = getattr(trt.ComputeCapability, device.upper())
                config.set_compute_capability(target, index)

    def _add_profile(self, config: Any, profile: PlanProfile) -> None:
        made = self._builder.create_optimization_profile()
        for index in range(self._network.num_inputs):
            tensor = self._network.get_input(index)
            shape = tuple(tensor.shape)
            if -1 in shape:
                least, best, most = profile_shapes(tensor.name, shape, profile)
                made.set_shape(tensor.name, least, best, most)
        if config.add_optimization_profile(made) < 0:
            raise ExportError(
                f"{self._library.title} refuses a profile of {list(profile.widths)} tokens with "
                f"{list(profile.rows)} wanted rows ({last_error(self._logger, 'no reason given')}); "
                "choose other --widths"
            )

    def _timing_cache(self, config: Any, path: Path | None) -> Any:
        if path is None:
            return None
        try:
            content = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise ConfigError(f"--timing-cache {path} can't be read: {error.strerror}") from error
        cache = config.create_timing_cache(content)
        if cache is None or not config.set_timing_cache(cache, False):
            raise ConfigError(
                f"--timing-cache {path} is from another TensorRT or device; name another file"
            )
        return cache

    def _parse_error(self) -> str:
        if not self._parser.num_errors:
            return last_error(self._logger, "no reason given")
        error = self._parser.get_error(0)
        where = f"{error.node_operator() or 'the file'} at {error.node_name() or 'its top'}"
        return f"{where}: {' '.join(error.desc().split()) or 'not supported'}"

    def _build_error(self) -> str:
        reason = last_error(self._logger, "no reason given")
        advice = "see docs/tensorrt.md"
        if "implementation" in reason or "memory" in reason.lower():
            advice = "on a small board lower --workspace and --capacity and close other programs"
        elif "CUDA driver" in reason or "cudaError" in reason:
            advice = "a full TensorRT builds on the device it is for only"
        return f"{self._library.title} can't build the plan ({reason}); {advice}"


def profile_shapes(
    name: str, shape: tuple[int, ...], profile: PlanProfile
) -> list[tuple[int, ...]]:
    """Least, best and largest shape of an input with free dimensions, which are -1 in ``shape``."""
    free = profile.rows if name == "logit_rows" else profile.widths
    return [tuple(number if dim == -1 else dim for dim in shape) for number in free]


def _flags(options: BuilderOptions) -> list[tuple[str, str]]:
    """Option and builder flag of what is asked for; flags are known by name, their numbers move."""
    wanted = (
        (options.version_compatible, "--version-compatible", "VERSION_COMPATIBLE"),
        (options.strip_weights, "--strip-weights", "STRIP_PLAN"),
        # the weights put back are those of the build: kernels may be chosen for them
        (options.strip_weights, "--strip-weights", "REFIT_IDENTICAL"),
    )
    return [(option, flag) for asked, option, flag in wanted if asked]


def _network_flags(trt: Any) -> int:
    """Strong typing where it has to be asked for."""
    kinds = getattr(trt, "NetworkDefinitionCreationFlag", None)
    typed = getattr(kinds, "STRONGLY_TYPED", None)
    return 0 if typed is None else 1 << int(typed)


@contextlib.contextmanager
def _interrupting(monitor: Any) -> Iterator[None]:
    """Let Ctrl-C stop the build: an exception raised in a callback would be lost in the library."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(*_: object) -> None:
        monitor.interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _make_monitor(trt: Any, progress: BuildProgress) -> Any:
    """A progress monitor that reports phases and stops the build on Ctrl-C."""

    class _Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.interrupted = False
            self._steps: dict[str, int] = {}

        def phase_start(self, phase: str, parent: str | None, num_steps: int) -> None:
            self._steps[phase] = num_steps

        def phase_finish(self, phase: str) -> None:
            self._steps.pop(phase, None)

        def step_complete(self, phase: str, step: int) -> bool:
            progress(phase, step + 1, self._steps.get(phase, step + 1))
            return not self.interrupted

    return _Monitor()
