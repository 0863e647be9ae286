from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lade_edge.runtime.drafting.tree import DraftTree


def tree_of(*chains: list[int], max_nodes: int = 99, max_depth: int = 99) -> DraftTree:
    tree = DraftTree(stop_tokens=frozenset({9}))
    tree.reset(0, max_nodes=max_nodes, max_depth=max_depth)
    for rank, chain in enumerate(chains, start=1):
        tree.add_chain(chain, 1.0 / rank, f"source {rank}")
    tree.arrange()
    return tree


def test_shared_prefixes_are_held_once() -> None:
    tree = tree_of([1, 2, 3], [1, 2, 4], [5])
    assert tree.tokens == [0, 1, 2, 3, 4, 5]
    assert tree.parents == [0, 0, 1, 2, 2, 0]
    assert tree.depths == [0, 1, 2, 3, 3, 1]
    assert tree.origins[3:] == ["source 1", "source 2", "source 3"]


def test_a_chain_is_cut_at_the_first_stop_token() -> None:
    assert tree_of([1, 9, 2], [9, 3]).tokens == [0, 1]


def test_depth_and_node_caps_keep_the_newest_candidates() -> None:
    assert tree_of([1, 2, 3], [4, 5, 6], max_depth=2).tokens == [0, 1, 2, 4, 5]
    assert tree_of([1, 2, 3], [4, 5, 6], max_nodes=4).tokens == [0, 1, 2, 3, 4]
    assert tree_of([1], max_depth=0).tokens == [0]
    assert tree_of([1], max_depth=-3).tokens == [0]


def test_the_main_chain_takes_the_first_slots() -> None:
    tree = tree_of([1, 9], [2, 3], [1, 4])
    assert tree.tokens == [0, 1, 4, 2, 3]
    assert tree.parents == [0, 0, 1, 0, 3]
    assert tree.children == [{1: 1, 2: 3}, {4: 2}, {}, {3: 4}, {}]
    assert tree.main_length == 2


def test_a_raised_score_moves_a_branch_to_the_front() -> None:
    tree = DraftTree()
    tree.reset(0, max_nodes=9, max_depth=9)
    tree.add_chain([1, 2], 0.3, "a")
    tree.add_chain([3, 4], 0.4, "b")
    tree.add_chain([1], 0.9, "c")
    tree.arrange()
    assert tree.tokens == [0, 1, 2, 3, 4]
    assert tree.origins == ["", "a", "a", "b", "b"]


def test_a_child_never_outranks_its_parent() -> None:
    tree = DraftTree()
    tree.reset(0, max_nodes=9, max_depth=9)
    parent = tree.add(0, 1, 0.2, "a")
    assert parent is not None
    child = tree.add(parent, 2, 0.9, "a")
    other = tree.add(0, 3, 0.5, "a")
    assert child is not None
    assert tree.scores == [1.0, 0.2, 0.2, 0.5]
    assert tree.add(parent, 2, 0.9, "b") == child
    assert tree.scores[child] == 0.2
    assert other == 3
    tree.arrange()
    assert tree.tokens == [0, 3, 1, 2]


chains = st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=6)


@settings(deadline=None)
@given(chains, st.integers(0, 10), st.integers(0, 4), st.lists(st.floats(0, 1), min_size=6))
def test_any_tree_is_in_slot_order(
    drafts: list[list[int]], max_nodes: int, max_depth: int, scores: list[float]
) -> None:
    tree = DraftTree()
    tree.reset(7, max_nodes=max_nodes, max_depth=max_depth)
    for chain, score in zip(drafts, scores, strict=False):
        tree.add_chain(chain, score, "x")
    tree.arrange()
    assert len(tree) <= max_nodes + 1
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        assert parent < node
        assert tree.depths[node] == tree.depths[parent] + 1 <= max_depth
        assert tree.depths[node] <= node
        assert tree.scores[node] <= tree.scores[parent]
        assert tree.children[parent][tree.tokens[node]] == node
    main = tree.main_length
    assert tree.parents[1 : main + 1] == list(range(main))
    assert not tree.children[main]
    assert tree.scores[main + 1 :] == sorted(tree.scores[main + 1 :], reverse=True)


def test_a_filled_tree_equals_one_that_grew_node_by_node() -> None:
    grown, filled = DraftTree(), DraftTree()
    nodes = [
        (0, 5, 0.9, "a"),
        (0, 6, 0.8, "b"),
        (1, 5, 0.7, "a"),
        (3, 7, 0.6, "b"),
        (2, 9, 0.1, "a"),
    ]
    grown.reset(4, max_nodes=9, max_depth=9)
    for node in nodes:
        grown.add(*node)
    parents, tokens, scores, origins = ([*column] for column in zip(*nodes, strict=True))
    filled.fill([4, *tokens], [0, *parents], [1.0, *scores], ["", *origins])
    assert grown.arrange() == filled.arrange() == [0, 1, 3, 4, 2, 5]
    for name in ("tokens", "parents", "depths", "scores", "origins", "children", "main_length"):
        assert getattr(grown, name) == getattr(filled, name)
