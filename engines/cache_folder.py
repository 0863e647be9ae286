"""The user's cache folder, where what was found out about a machine is kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, by the XDG convention.

    Raises:
        RuntimeError: If there is no home folder.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "lade"
