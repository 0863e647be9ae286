"""The most memory this process has held."""

from __future__ import annotations

import sys


def peak_memory_mb() -> float | None:
    """The most memory this process has held so far, in megabytes; None where it isn't told."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
