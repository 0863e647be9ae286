"""What the machine is, for the head of a result."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

_TELLING = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "asimddp",
    "i8mm",
)


def describe_machine() -> dict[str, Any]:
    """CPU model, usable cores, instruction sets that matter here, memory, system, load, date."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": fields.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in _TELLING if flag in flags],
        "memory_gb": round(pages * size / 1e9, 1),
        "system": platform.platform(),
        "load_average": os.getloadavg()[0],
        "date": date.today().isoformat(),
    }
