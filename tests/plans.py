"""Plans for the stand-in of TensorRT: a lowered graph, a file that names it, and a fingerprint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from fake_tensorrt import ONE_DEVICE, FakeCudaApi, fake_library
from lade_edge.engines import Bundle, describe_file, open_bundle
from lade_edge.engines.cuda_runtime import CudaRuntime
from lade_edge.engines.plan import (
    PlanBucket,
    PlanProfile,
    PlanRecord,
    fingerprint_path,
    plan_record_text,
)
from lade_edge.engines.tensorrt_engine import TensorRTEngine
from lade_edge.export.half_precision import convert_to_half
from lade_edge.export.lower_tensorrt import lower_for_tensorrt

BUCKETS = (
    *(PlanBucket(width=w, rows=w) for w in (1, 2, 4, 8, 16)),
    PlanBucket(width=32, rows=1),
)


def lower(source: Path, target: Path, form: str, precision: str, slots: int) -> Path:
    """A canonical graph lowered for TensorRT, as a file that ONNX Runtime can load."""
    model = ir.load(source)
    if precision == "fp16":
        convert_to_half(model.graph)
    lower_for_tensorrt(model, form=form, slots=slots)
    ir.save(model, target, external_data=f"{target.name}.data")
    return target


def make_plan(
    source: Path | Bundle, folder: Path, graph_form: str, precision: str = "fp32", **changes: Any
) -> Path:
    """A plan of capacity 100 with steps of up to 16 tokens and chunks of 32."""
    folder.mkdir(parents=True, exist_ok=True)
    bundle = source if isinstance(source, Bundle) else open_bundle(source, verify=False)
    manifest, canonical = bundle.manifest, bundle.graph_path
    graph = lower(canonical, folder / "lowered.onnx", graph_form, precision, 128)
    plan = folder / "tiny.plan"
    plan.write_text(str(graph.resolve()))
    record = PlanRecord(
        name=manifest.name,
        lade_version="0",
        source=manifest.source,
        flavour="tensorrt",
        version="10.9.0",
        compute_capabilities=("8.7",),
        forward_compatible=False,
        version_compatible=False,
        form=graph_form,
        precision=precision,
        capacity=100,
        slots=128,
        buckets=BUCKETS,
        profiles=(PlanProfile(widths=(1, 8, 32), rows=(1, 8, 16)),),
        onnx=str(canonical),
        onnx_sha256="0" * 64,
        model=manifest.model,
        eos_token_ids=manifest.eos_token_ids,
        plan=describe_file(plan),
    )
    fingerprint_path(plan).write_text(plan_record_text(replace(record, **changes)))
    return plan


def open_fake(plan: Path, **options: Any) -> TensorRTEngine:
    """A plan of `plans.make_plan` on the stand-ins of TensorRT, CUDA and the driver."""
    api = FakeCudaApi()
    defaults: dict[str, Any] = {
        "library": fake_library(api),
        "driver": lambda: ONE_DEVICE,
        "cuda": lambda: CudaRuntime(api),
    }
    return TensorRTEngine(open_bundle(plan), **defaults | options)
