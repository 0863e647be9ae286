"""Throws odd manifests, fingerprints and requests at their readers, for as long as it is told.

    python tools/fuzz.py --minutes 60 [--only "manifest fields"]

Inputs and checks are those of tests/fuzzing.py. Each target gets its turn in rounds of new inputs. Prints
one line per target at the end; at the first broken promise the smallest input that breaks it, and exits
1. What it finds belongs into the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fuzzing import TARGETS, Target

ROUND = 200  # inputs a target gets before it is the next one's turn


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", choices=TARGETS, help="one target in place of all")
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        parser.error(f"--minutes is {arguments.minutes}, expected more than 0")
    names = [arguments.only] if arguments.only else [*TARGETS]
    end = time.monotonic() + 60 * arguments.minutes
    counts = dict.fromkeys(names, 0)
    while time.monotonic() < end:
        for name in names:
            counts[name] += throw(TARGETS[name], ROUND, until=end)
    for name, count in counts.items():
        print(f"{name}: {count} inputs, nothing found")
    return 0


def throw(target: Target, count: int, *, until: float) -> int:
    """One round of new inputs.

    Args:
        target: What to throw.
        count: Inputs at most.
        until: `time.monotonic` at which to stop.

    Returns:
        How many were thrown.

    Raises:
        Exception: Whatever the check raised for the smallest input that breaks it, with that input
            in its notes.
    """
    thrown, failed = 0, False
    with tempfile.TemporaryDirectory() as folder:

        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=[*HealthCheck],
        )
        @given(target.inputs)
        def check(value: Any) -> None:
            nonlocal thrown, failed
            if not failed and time.monotonic() >= until:
                return
            thrown += 1
            try:
                target.check(Path(folder), value)
            except Exception:
                failed = True  # it is made smaller beyond the end
                raise

        check()
    return thrown


if __name__ == "__main__":
    sys.exit(main())
