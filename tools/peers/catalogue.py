"""Which peers there are: their packages, how their models are made, what runs them."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment of its own.

    Attributes:
        name: Its folder.
        requirements: Packages from PyPI.
        variables: Environment variables for the installation.
        unwanted: Packages to take out again.
    """

    name: str
    requirements: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    unwanted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An engine with a model in one precision.

    Attributes:
        engine: Name of the engine.
        precision: What its weights are.
        environment: Where it runs; None for the interpreter that runs this.
        module: Its worker's module.
        conversion: Command in its environment that makes the model from ``{source}``, a Hugging Face
            folder, or ``{gguf}``, in ``{out}``; empty if the model is there.
    """

    engine: str
    precision: str
    environment: Environment | None
    module: str
    conversion: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Engine and precision."""
        return f"{self.engine} {self.precision}"


def _flags_of_this_machine() -> str:
    """Compiler flags for llama.cpp beside ``-march=native``.

    GCC before 13 drops the stores that set up AMX tiles, and the program traps at the first one.
    """
    processor = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not processor.is_file():
        return ""
    gcc = shutil.which("gcc")
    if "amx_tile" not in processor.read_text() or gcc is None:
        return ""
    version = subprocess.run([gcc, "-dumpversion"], capture_output=True, text=True).stdout
    without = "-mno-amx-int8" if int(version.partition(".")[0] or 0) < 13 else ""
    return without and f" -DCMAKE_C_FLAGS={without} -DCMAKE_CXX_FLAGS={without}"


TRANSFORMERS = Environment(
    name="transformers",
    requirements=("transformers>=5,<6", "torch", "gguf", "accelerate", "sentencepiece"),
)
_LLAMA_CPP = Environment(
    name="llama.cpp",
    requirements=("llama-cpp-python",),
    variables=(
        ("CMAKE_ARGS", f"-DGGML_NATIVE=ON{_flags_of_this_machine()}"),
        ("CMAKE_BUILD_PARALLEL_LEVEL", "2"),
    ),
)
_OPENVINO = Environment(
    name="openvino",
    requirements=(
        "torch", "optimum-intel", "openvino", "openvino-genai", "openvino-tokenizers", "nncf",
    ),
    unwanted=("torchvision",),  # it doesn't load beside a CPU build of torch, and images aren't read
)  # fmt: skip
_ONNXRUNTIME = Environment(
    name="onnxruntime-genai",
    requirements=("onnxruntime-genai", "torch", "transformers", "onnx", "onnx-ir"),
)


def _openvino(precision: str, *options: str) -> Candidate:
    weights = ("--weight-format", *options)
    return Candidate(
        engine="openvino",
        precision=precision,
        environment=_OPENVINO,
        module="peers.engine_openvino",
        conversion=(
            "optimum-cli", "export", "openvino", "--model", "{source}",
            "--task", "text-generation-with-past", *weights, "{out}",
        ),
    )  # fmt: skip


def _onnxruntime(precision: str) -> Candidate:
    return Candidate(
        engine="onnxruntime-genai",
        precision=precision,
        environment=_ONNXRUNTIME,
        module="peers.engine_onnxruntime_genai",
        conversion=(
            "python", "-m", "onnxruntime_genai.models.builder", "-i", "{source}", "-o", "{out}",
            "-p", precision, "-e", "cpu", "-c", "{out}/cache",
        ),
    )  # fmt: skip


PEERS = (
    Candidate(
        engine="transformers",
        precision="fp32",
        environment=TRANSFORMERS,
        module="peers.engine_transformers",
    ),
    Candidate(
        engine="llama.cpp",
        precision="gguf",
        environment=_LLAMA_CPP,
        module="peers.engine_llama_cpp",
    ),
    _openvino("int8", "int8"),
    _openvino("int4", "int4", "--group-size", "64", "--ratio", "1.0"),
    _onnxruntime("int8"),
    _onnxruntime("int4"),
)


OUR_BUNDLES = tuple(
    Candidate(
        engine=OURS,
        precision=precision,
        environment=None,
        module="peers.engine_lade",
        conversion=(
            "python", "-m", "lade_edge.export.cli", "{gguf}", "-o", "{out}",
            "--precision", precision, "--slim",
        ),
    )
    for precision in ("fp32", "int8", "int4")
)  # fmt: skip
