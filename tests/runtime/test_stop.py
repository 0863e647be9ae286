from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lade_edge.runtime.stop import StopMatcher


def released(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    texts = []
    for piece in pieces:
        texts.append(matcher.push(piece))
        if matcher.matched:
            break
    return [*texts, matcher.flush()], matcher.matched


def test_a_stop_split_over_pieces_never_leaks() -> None:
    assert released(["STOP"], ["ab S", "TO", "P cd"]) == (["ab ", "", "", ""], True)


def test_a_false_start_is_released() -> None:
    assert released(["STOP"], ["ab ST", "x"]) == (["ab ", "STx", ""], False)
    assert released(["STOP"], ["ab ST"]) == (["ab ", "ST"], False)


def test_overlapping_starts() -> None:
    assert released(["aab"], ["aa", "ab"]) == (["", "a", ""], True)


def test_the_earliest_of_several_stops_cuts() -> None:
    assert released(["cd", "bcd"], ["abcd"]) == (["a", ""], True)


def test_nothing_is_held_without_stops() -> None:
    assert released([], ["S"]) == (["S", ""], False)


@settings(deadline=None)
@given(
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=8),
)
def test_text_equals_a_search_in_the_whole(stops: list[str], pieces: list[str]) -> None:
    texts, matched = released(stops, pieces)
    whole = ""
    for piece in pieces:
        whole += piece
        starts = [whole.find(stop) for stop in stops if stop in whole]
        if starts:
            assert matched
            assert "".join(texts) == whole[: min(starts)]
            return
    assert not matched
    assert "".join(texts) == whole
