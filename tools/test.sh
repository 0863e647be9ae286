#!/usr/bin/env bash
# Installs everything the checks need into .venv and runs them: linters, types, imports, tests.
#
#   bash tools/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/environment.sh
prepare .venv-oldest cpu onnxruntime==1.23.2 # the last release for Python 3.10 on aarch64; no torch
# real builds with TensorRT-RTX, which fetches its libraries while it is installed
bash -c 'set -euo pipefail; source tools/environment.sh; prepare .venv-rtx cpu,rtx' ||
  echo "tensorrt-rtx can't be installed here; its tests are skipped" >&2
prepare .venv cpu,export,bench,serve,dev
bash tools/tensorrt_bindings.sh "$python" .cache/tensorrt-bindings ||
  echo "TensorRT's bindings can't be fetched here; the test of their names is skipped" >&2
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$python" -m mypy tests tools/*.py tools/peers/*.py docs/examples/*.py
"$(dirname "$python")/lint-imports"
"$python" -m pytest "$@"
