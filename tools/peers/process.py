"""The near side of a worker: its process, requests with a time limit, its processor time."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
from pathlib import Path
from typing import Any

from peers.setup import last_words, python_path

_PATIENCE_S = 600.0


class PeerError(Exception):
    """A worker failed; says what its library printed."""


class WorkerProcess:
    """A worker.

    Args:
        python: Interpreter with the engine's packages.
        module: Module of the engine.
        log: File for what its libraries print.
    """

    def __init__(self, python: Path, module: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [str(python), "-m", "peers.worker", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=os.environ | {"PYTHONPATH": python_path()},
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            PeerError: If the worker refuses, ends or doesn't answer.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it ended, or was closed after a request it never answered
            raise PeerError(self._end()) from None
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
        if not ready:
            self.close()
            raise PeerError(f"no answer in {_PATIENCE_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(self._end())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    def processor_s(self) -> float:
        """Processor time of all its threads so far, in seconds; 0 once it has ended."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # a request that nobody read
                    pipe.close()

    def _end(self) -> str:
        status = self._process.wait()
        return last_words(self._log) or f"the worker ended with status {status}"
