"""The table of known bugs names tests that exist, and leaves no row out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
TABLE = TESTS.parent / "docs" / "bug-cases.md"
ROW = re.compile(r"^\| (B\d\d) \| (.+) \| (.+) \|$", re.MULTILINE)
ROWS = {number: (behaviour, tests) for number, behaviour, tests in ROW.findall(TABLE.read_text())}


def names_in(file: str) -> set[str]:
    """Test functions of one file, by its syntax: nothing is imported."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_row_is_missing() -> None:
    assert [*ROWS] == [f"B{number:02}" for number in range(1, 59)]


@pytest.mark.parametrize("number", ROWS)
def test_the_tests_of_a_row_exist(number: str) -> None:
    behaviour, tests = ROWS[number]
    found = re.findall(r"`([^`]+)`", tests)
    assert behaviour
    assert found
    for test in found:
        file, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in names_in(file), test
