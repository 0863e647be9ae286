from __future__ import annotations

import pytest

from lade_edge.runtime.config import Shape
from lade_edge.runtime.drafting.window import JacobiWindow


def window_of(columns: int, ngram: int, *, seed: int = 0, eos: int = 99) -> JacobiWindow:
    shape = Shape(window=columns, ngram=ngram, guesses=1)
    return JacobiWindow(shape, seed=seed, eos=frozenset({eos}))


def flat(window: JacobiWindow) -> list[int]:
    return [token for row in window.rows for token in row]


def test_the_letters_example() -> None:
    """Algorithm page, section 5: cur a; b1..b4; c1..c5; d1..d5; new n1..n5."""
    a, b, c, d, n = 1, [11, 12, 13, 14], [21, 22, 23, 24, 25], [31, 32, 33, 34, 35], range(41, 46)
    window = window_of(5, 4)
    window.rows[:] = [[a, *b], c, d]
    newest = list(n)
    assert window.collect(newest) == [
        (a, (21, 31, 41)),
        (11, (22, 32, 42)),
        (12, (23, 33, 43)),
        (13, (24, 34, 44)),
        (14, (25, 35, 45)),
    ]
    window.shift(newest, [a])
    window.place_root(2)
    assert window.rows == [[2, 22, 23, 24, 25], d, list(n)]


def test_two_grams_have_one_row() -> None:
    window = window_of(3, 2)
    window.rows[:] = [[1, 2, 3]]
    newest = [4, 5, 6]
    assert window.collect(newest) == [(1, (4,)), (2, (5,)), (3, (6,))]
    window.shift(newest, [1])
    window.place_root(7)
    assert window.rows == [[7, 5, 6]]


def test_one_column() -> None:
    window = window_of(1, 3)
    window.rows[:] = [[1], [2]]
    assert window.collect([3]) == [(1, (2, 3))]
    window.shift([3], [1])
    window.place_root(4)
    assert window.rows == [[4], [3]]


def test_the_start_is_drawn_from_the_prompt_and_depends_on_the_seed() -> None:
    prompt = [50, 51, 52]
    starts = []
    for seed in (0, 0, 1):
        window = window_of(6, 4, seed=seed)
        window.reset(prompt)
        window.place_root(7)
        assert window.rows[0][0] == 7
        assert set(flat(window)[1:]) <= set(prompt)
        starts.append(flat(window))
    assert starts[0] == starts[1] != starts[2]


def test_a_reset_window_starts_again_with_its_seed() -> None:
    window = window_of(6, 4, seed=3)
    window.reset([1, 2, 3])
    first = window.rows[1:]
    window.shift([99] * 6, [1, 2, 3])
    window.reset([1, 2, 3])
    assert window.rows[1:] == first


@pytest.mark.parametrize(("columns", "ngram"), [(1, 2), (1, 4), (5, 2), (4, 5)])
def test_a_one_token_prompt_fills_every_shape(columns: int, ngram: int) -> None:
    window = window_of(columns, ngram)
    window.reset([5])
    assert set(flat(window)[1:]) <= {5}


def test_end_tokens_are_replaced_in_the_row_but_collected_as_they_are() -> None:
    window = window_of(3, 3, eos=9)
    window.rows[:] = [[1, 2, 3], [4, 5, 6]]
    newest = [7, 9, 8]
    assert window.collect(newest)[1] == (2, (5, 9))
    window.shift(newest, [30, 31])
    assert window.rows[-1][0] == 7
    assert window.rows[-1][1] in (30, 31)
    assert window.rows[-1][2] == 8
    assert newest == [7, 9, 8]
