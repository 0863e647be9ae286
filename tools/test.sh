#!/usr/bin/env bash
# Installs everything the checks need into .venv and runs them: linters, types, imports, tests.
#
#   bash tools/test.sh [PYTEST ARGUMENTS]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/environment.sh
prepare .venv-oldest cpu onnxruntime==1.23.2 # the last release for Python 3.10 on aarch64; no torch
prepare .venv cpu,export,bench,serve,dev
"$python" -m ruff check .
"$python" -m ruff format --check .
"$python" -m mypy
"$python" -m mypy tests tools/*.py docs/examples/*.py
"$(dirname "$python")/lint-imports"
"$python" -m pytest "$@"
