"""Errors a user can act on.

::

    LadeError                    one sentence on stderr, exit 1
      ConfigError (ValueError)   a flag or argument, or a combination of them
      ManifestError              bundle missing, damaged, of another schema, or not as it says
      EngineError                load or run failed, dependency or driver missing
      CapacityError              prompt, new tokens or step width exceed the KV cache
      ExportError                unsupported architecture, layer, op or weights
      ParityError                exported graph and reference disagree

Every message says what was found, what was expected and what to do about it. Anything that is not
a `LadeError` is a defect of ours and keeps its traceback.
"""

from __future__ import annotations


class LadeError(Exception):
    """Base of everything a user can mend; the command lines print it as one line and exit 1."""


class ConfigError(LadeError, ValueError):
    """An argument, or a combination of arguments, that can't be used."""


class ManifestError(LadeError):
    """A bundle that is missing, incomplete, damaged or written by another schema version."""


class EngineError(LadeError):
    """An engine that can't be loaded or run here: missing dependency, driver or provider."""


class CapacityError(LadeError):
    """A request that doesn't fit into the KV cache."""


class ExportError(LadeError):
    """A model that can't be exported; names the layer, op or weight that stands in the way."""


class ParityError(LadeError):
    """An exported graph that disagrees with its reference beyond the tolerance."""
