"""Virtual environments and models of the peers, each made once and kept in a cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType

from peers.catalogue import TRANSFORMERS, Candidate, Environment

from lade_edge import export
from lade_edge.engines import LadeError, describe_file

TOOLS = Path(__file__).resolve().parents[1]
_CONSTRAINTS = TOOLS / "constraints.txt"  # torch comes as a CPU build, in every environment
Tell = Callable[[str], None]


class SetupError(LadeError):
    """A peer can't be made ready; says what its installer or converter printed last."""


class Setup:
    """Makes what a candidate needs.

    Args:
        cache: Folder that keeps everything.
        gguf: The model that all peers get.
        tell: Told what takes time.
    """

    def __init__(self, cache: Path, gguf: Path, tell: Tell) -> None:
        self._cache, self._gguf, self._tell = cache.resolve(), gguf.resolve(), tell

    @cached_property
    def _models(self) -> Path:
        """The folder of this model's conversions; files of one name are told apart."""
        digest = describe_file(self._gguf).sha256[:8]
        return self._cache / "models" / f"{self._gguf.stem}-{digest}"

    def python(self, environment: Environment | None) -> Path:
        """The interpreter of an environment, installed if it isn't.

        Raises:
            SetupError: If a package can't be installed.
        """
        if environment is None:
            return Path(sys.executable)
        folder = self._cache / environment.name / "venv"
        python, mark = folder / "bin" / "python", folder / "peer-installed"
        want = f"{environment}\n{_CONSTRAINTS.read_text()}"
        if not mark.is_file() or mark.read_text() != want:
            self._tell(f"installing {environment.name}")
            log = self._cache / environment.name / "install.log"
            _run([sys.executable, "-m", "venv", str(folder)], log)
            pip = [str(python), "-m", "pip"]
            install = [*pip, "install", "-c", str(_CONSTRAINTS), *environment.requirements]
            if environment.variables:  # what others or earlier flags built is of no use
                install.append("--no-cache-dir")
            _run(install, log, dict(environment.variables))
            if environment.unwanted:
                _run([*pip, "uninstall", "--yes", *environment.unwanted], log)
            mark.write_text(want)
        return python

    def model(self, candidate: Candidate) -> Path:
        """The model of a peer, converted if it isn't.

        Raises:
            SetupError: If its converter fails.
        """
        if candidate.precision == "gguf":
            return self._gguf
        if not candidate.conversion:
            return self._source()
        python = self.python(candidate.environment)
        maker = str(candidate.environment) if candidate.environment else _sources_of(export)
        return self._make(candidate.name.replace(" ", "-"), python, candidate.conversion, maker)

    def _source(self) -> Path:
        """The GGUF file as a Hugging Face folder in float32."""
        command = ("python", "-m", "peers.source", "{gguf}", "{out}")
        return self._make("source", self.python(TRANSFORMERS), command, str(TRANSFORMERS))

    def _make(self, name: str, python: Path, command: Sequence[str], maker: str) -> Path:
        """A model; made again if its command has changed, or what runs it."""
        folder, mark = self._models / name, self._models / f"{name}.made"
        want = f"{' '.join(command)}\n{maker}"
        if not folder.is_dir() or not mark.is_file() or mark.read_text() != want:
            partial = folder.with_name(f"{name}.partial")
            places = {"gguf": self._gguf, "out": partial}
            if "{source}" in command:
                places["source"] = self._source()
            self._tell(f"making {name}")
            shutil.rmtree(partial, ignore_errors=True)
            program, *arguments = (word.format(**places) for word in command)
            log = self._models / f"{name}.log"
            _run([str(python.with_name(program)), *arguments], log, {"PYTHONPATH": python_path()})
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
            mark.write_text(want)
        return folder


def _sources_of(package: ModuleType) -> str:
    """Tells states of a package's own code apart."""
    digest = hashlib.sha256()
    for path in sorted(Path(package.__path__[0]).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def python_path() -> str:
    """Where a peer's interpreter finds this package; the caller's own paths follow."""
    return os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(command: list[str], log: Path, variables: dict[str, str] | None = None) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | (variables or {})
        )
    if done.returncode:
        raise SetupError(last_words(log) or f"{command[0]} ended with status {done.returncode}")


def last_words(log: Path) -> str:
    """The last line of a log that says anything."""
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
