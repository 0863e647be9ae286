"""Verification: follow the model's choices through the draft tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Choose = Callable[[int], int]
"""The next token after a node, whatever the tree guessed: an argmax, or one draw."""


class Walk(NamedTuple):
    """What one step produced.

    Attributes:
        tokens: Tokens chosen in order, at least one; one more than matched unless ended early.
        path: Slots of the matched draft nodes.
    """

    tokens: list[int]
    path: list[int]


def walk(
    children: Sequence[Mapping[int, int]],
    choose: Choose,
    *,
    eos: frozenset[int],
    budget: int,
) -> Walk:
    """Choose a token, step to the child that guessed it, and so on.

    The token chosen after the last matched node costs nothing and is always kept, so a fully
    matched n-gram of N-1 drafts gives N tokens.

    Args:
        children: For each node, its children by token; node 0 is the root.
        choose: Called once per visited node, with its number.
        eos: Tokens nothing may follow.
        budget: Most tokens to choose, at least 1.

    Returns:
        The chosen tokens and the nodes they passed through.

    Source: arXiv 2402.02057, algorithms 3 and 4, in the tree form of sample-then-match.
    """
    tokens: list[int] = []
    path: list[int] = []
    node: int | None = 0
    while node is not None:
        token = choose(node)
        tokens.append(token)
        if token in eos or len(tokens) == budget:
            break
        node = children[node].get(token)
        if node is not None:
            path.append(node)
    return Walk(tokens, path)
