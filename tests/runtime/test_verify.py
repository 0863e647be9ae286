from __future__ import annotations

from lade_edge.runtime.drafting.tree import DraftTree
from lade_edge.runtime.verify import Walk, walk

NO_EOS: frozenset[int] = frozenset()


def children() -> list[dict[int, int]]:
    tree = DraftTree()
    tree.reset(0, max_nodes=99, max_depth=99)
    tree.add_chain([1, 2, 3], 0.9, "x")
    tree.add_chain([4, 5, 6], 0.5, "x")
    tree.arrange()
    return tree.children


def choices(*tokens: int) -> list[int]:
    return [*tokens, *(50 + node for node in range(len(tokens), 7))]


def test_without_a_match_one_token_comes_out() -> None:
    assert walk(children(), choices(9).__getitem__, eos=NO_EOS, budget=9) == Walk([9], [])


def test_the_token_after_a_full_match_is_kept() -> None:
    chosen = choices(1, 2, 3, 8)
    assert walk(children(), chosen.__getitem__, eos=NO_EOS, budget=9) == Walk(
        [1, 2, 3, 8], [1, 2, 3]
    )


def test_a_later_branch_is_followed() -> None:
    chosen = [4, 0, 0, 0, 5, 7, 0]
    assert walk(children(), chosen.__getitem__, eos=NO_EOS, budget=9) == Walk([4, 5, 7], [4, 5])


def test_an_end_token_ends_the_walk_even_if_it_was_drafted() -> None:
    chosen = choices(1, 2, 3, 8)
    assert walk(children(), chosen.__getitem__, eos=frozenset({2}), budget=9) == Walk([1, 2], [1])


def test_the_budget_ends_the_walk() -> None:
    chosen = choices(1, 2, 3, 8)
    assert walk(children(), chosen.__getitem__, eos=NO_EOS, budget=2) == Walk([1, 2], [1])


def test_only_visited_nodes_are_asked() -> None:
    asked = []

    def choose(node: int) -> int:
        asked.append(node)
        return (4, 0, 0, 0, 9)[node]

    assert walk(children(), choose, eos=NO_EOS, budget=9).tokens == [4, 9]
    assert asked == [0, 4]
