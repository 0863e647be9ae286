from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lade_edge.runtime.drafting.step_cost import StepCost, free


def test_times_between_measured_widths_are_interpolated() -> None:
    cost = StepCost({1: 10.0, 3: 14.0}, max_width=3)
    assert cost.plain == 10.0
    assert cost.least_chances[1] == pytest.approx(0.2)


def test_beyond_the_widest_measured_width_time_goes_on_growing() -> None:
    cost = StepCost({1: 10.0, 2: 12.0}, max_width=4)
    assert cost.best_width([1.0, 0.9, 0.15, 0.15])[0] == 2
    assert cost.least_chances[2] == pytest.approx(0.2)


def test_a_slower_width_is_run_at_the_next_faster_one() -> None:
    cost = StepCost({1: 64.0, 2: 25.0, 3: 30.0, 4: 27.0}, max_width=4)
    assert cost.widths == [0, 2, 2, 4, 4]
    assert cost.plain == 25.0


def test_no_step_is_narrower_than_asked_for() -> None:
    cost = StepCost({1: 10.0, 2: 11.0, 4: 13.0}, max_width=4, min_width=2)
    assert cost.widths == [0, 2, 2, 3, 4]
    assert cost.plain == 11.0


def test_the_widest_step_takes_no_more() -> None:
    assert StepCost({1: 1.0, 4: 1.1}, max_width=4).least_chances[4] > 1


def test_hopeless_drafts_give_a_plain_step() -> None:
    cost = StepCost({1: 10.0, 2: 12.0, 4: 16.0}, max_width=4)
    assert cost.best_width([1.0, 0.1, 0.1])[0] == 1
    assert cost.best_width([1.0, 0.9, 0.1])[0] == 2
    assert cost.best_width([1.0, 0.9, 0.8, 0.7])[0] == 4


def test_a_step_in_the_cost_is_crossed_only_by_enough_drafts() -> None:
    cost = StepCost({1: 10.0, 2: 14.0, 8: 14.0}, max_width=8)
    assert cost.best_width([1.0, 0.3])[0] == 1
    assert cost.best_width([1.0, 0.3, 0.2])[0] == 3


@given(
    st.lists(st.floats(0.5, 3.0), min_size=3, max_size=9),
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12),
)
def test_the_width_is_the_best_of_all_and_growth_never_stops_short_of_it(
    times: list[float], drafts: list[float]
) -> None:
    measured = {width: sum(times[:width]) for width in range(1, len(times) + 1)}
    cost = StepCost(measured, max_width=len(times))
    chances = [1.0, *sorted(drafts, reverse=True)][: len(times)]

    def value(width: int) -> float:
        return cost.plain * sum(chances[1:width]) - (measured[width] - cost.plain)

    best, gain = cost.best_width(chances)
    assert gain * cost.plain == pytest.approx(value(best), abs=1e-9)
    assert all(value(best) >= value(width) - 1e-9 for width in range(1, len(chances) + 1))
    grown = next(
        (k for k in range(1, len(chances)) if chances[k] <= cost.least_chances[k]), len(chances)
    )
    assert value(min(best, grown)) >= value(best) - 1e-9


def test_free_width_fills_every_slot() -> None:
    cost = free(4)
    assert cost.best_width([1.0, 0.01, 0.01, 0.01])[0] == 4
    assert cost.widths == [0, 1, 2, 3, 4]


def test_what_more_slots_cost_at_least() -> None:
    cost = StepCost({1: 10.0, 2: 11.0, 4: 20.0, 5: 20.5}, max_width=5)
    assert cost.least_price(1) == pytest.approx(0.05)
    assert cost.least_price(3) == pytest.approx(0.95)
    assert cost.least_price(5) == float("inf")
