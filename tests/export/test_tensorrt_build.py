"""What a builder is asked, and what its failures are told as, over a stand-in that builds nothing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lade_edge.engines import ExportError
from lade_edge.engines.plan import PlanProfile
from lade_edge.engines.tensorrt_library import TensorRTLibrary
from lade_edge.export.tensorrt_build import BuilderOptions, PlanBuilder

PROFILE = PlanProfile(widths=(1, 8, 16), rows=(1, 8, 16))


class FailingLibrary:
    """The names `PlanBuilder` calls; every build fails with what it is told to log.

    Attributes:
        limits: Memory pools that were given a limit, in bytes.
    """

    def __init__(self, reason: str) -> None:
        self.limits: dict[str, int] = {}
        self._reason = reason
        severity = SimpleNamespace(ERROR=1)
        self.module = SimpleNamespace(
            ILogger=type("ILogger", (), {"Severity": severity}),
            IProgressMonitor=type("IProgressMonitor", (), {}),
            MemoryPoolType=SimpleNamespace(WORKSPACE="workspace"),
            Builder=self._builder,
            OnnxParser=lambda network, logger: SimpleNamespace(parse_from_file=lambda path: True),
        )

    def open(self, flavour: str = "tensorrt") -> TensorRTLibrary:
        return TensorRTLibrary(self.module, flavour, "10.3.0")

    def _builder(self, logger: Any) -> Any:
        def fail(network: Any, config: Any) -> None:
            logger.log(1, self._reason)

        return SimpleNamespace(
            create_network=lambda flags: SimpleNamespace(num_layers=0, num_inputs=0),
            create_builder_config=lambda: SimpleNamespace(
                set_memory_pool_limit=self.limits.__setitem__,
                add_optimization_profile=lambda profile: 0,
            ),
            create_optimization_profile=lambda: None,
            build_serialized_network=fail,
        )


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("Could not find any implementation for node {ForeignNode}", "lower --workspace"),
        ("Skipping tactic 3 due to insufficient memory on requested size", "lower --workspace"),
        ("CUDA driver version is insufficient", "builds on the device it is for only"),
        ("something new", "see docs/tensorrt.md"),
    ],
)
def test_a_failed_build_says_what_to_do(reason: str, advice: str) -> None:
    builder = PlanBuilder(FailingLibrary(reason).open(), Path("model.onnx"))
    with pytest.raises(ExportError) as caught:
        builder.build([PROFILE], BuilderOptions())
    sentence = str(caught.value)
    assert sentence.startswith(f"TensorRT 10.3.0 can't build the plan ({reason}); ")
    assert advice in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(("asked_mb", "limits"), [(256, {"workspace": 256 << 20}), (None, {})])
def test_the_workspace_is_what_was_asked_for(asked_mb: int | None, limits: dict[str, int]) -> None:
    library = FailingLibrary("no")
    with pytest.raises(ExportError):
        PlanBuilder(library.open(), Path("x")).build(
            [PROFILE], BuilderOptions(workspace_mb=asked_mb)
        )
    assert library.limits == limits
