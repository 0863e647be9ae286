"""TensorRT in either flavour, imported once, with what it logs kept for our own errors."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from lade_edge.engines.errors import EngineError

PACKAGES = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_ADVICE = {
    "tensorrt": "on a Jetson it comes with JetPack (make the environment with "
    "--system-site-packages), elsewhere pip install tensorrt",
    "tensorrt_rtx": "pip install tensorrt-rtx",
}


@dataclass(frozen=True, slots=True)
class TensorRTLibrary:
    """An imported library.

    Attributes:
        module: ``tensorrt`` or ``tensorrt_rtx``; both speak the same API.
        flavour: Name of the module.
        version: Its version.
    """

    module: Any
    flavour: str
    version: str

    @property
    def title(self) -> str:
        """Name and version for people."""
        return f"{PACKAGES[self.flavour]} {self.version}"

    @property
    def is_rtx(self) -> bool:
        """Whether it is TensorRT-RTX."""
        return self.flavour == "tensorrt_rtx"


def import_tensorrt(*flavours: str) -> TensorRTLibrary:
    """Import the first flavour that is there.

    Args:
        *flavours: Module names in order of preference.

    Raises:
        EngineError: If none can be imported; says of each what is missing.
    """
    reasons = []
    for flavour in flavours:
        module, reason = _try_import(flavour)
        if module is not None:
            return TensorRTLibrary(module, flavour, str(module.__version__))
        reasons.append(f"{PACKAGES[flavour]} {reason}")
    raise EngineError("; ".join(reasons))


def _try_import(flavour: str) -> tuple[Any, str]:
    """The module, or None and what is wrong."""
    try:
        return importlib.import_module(flavour), ""
    except ModuleNotFoundError as error:
        missing = error.name or flavour
        what = "is not installed" if missing == flavour else f"lacks the package {missing}"
        return None, f"{what} ({_ADVICE[flavour]})"
    except (ImportError, OSError) as error:
        reason = str(error).partition("\n")[0]
        return None, f"can't be loaded ({reason})"


def make_logger(module: Any) -> Any:
    """A logger that prints nothing and keeps the errors in its list ``errors``, latest last."""

    class _Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if int(severity) <= int(module.ILogger.Severity.ERROR):
                self.errors.append(" ".join(message.split()))

    return _Logger()


def last_error(logger: Any, otherwise: str) -> str:
    """The last error logged, its first 300 characters."""
    if not logger.errors:
        return otherwise
    return str(logger.errors[-1])[:300]
