"""Draws the pictures of docs/concepts.md from what the runtime lays out: a step's mask, a draft tree.

    python tools/draw_concepts.py            # after a change of layout, tree or this file
    python tools/draw_concepts.py --check    # exit 1 if a picture isn't what the runtime lays out

Each picture carries a digest of what was drawn and of this file. `--check` compares that and not the
lines, which differ from one matplotlib to the next; one matplotlib draws the same bytes every time.
Needs matplotlib (pip install '.[bench]').
"""

from __future__ import annotations

import argparse
import hashlib
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lade_edge.engines.protocol import EngineSpec
from lade_edge.runtime.config import PLAIN, Shape
from lade_edge.runtime.drafting.tree import DraftTree
from lade_edge.runtime.layout import StepInput, StepLayout
from lade_edge.runtime.verify import walk

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
SHAPE = Shape(window=5, ngram=4, guesses=2)
SPEC = EngineSpec(
    name="drawn", device="cpu", vocab_size=1000, capacity=1000, max_width=64, max_position=1000,
    top_k=8,
)  # fmt: skip
LENGTH = 40  # committed tokens in front of the step
WORDS = ("sat", "on", "the", "mat", "sofa", "a", "chair", "down")
CHAINS = (
    (("on", "the", "mat"), 0.5),
    (("on", "the", "sofa"), 0.2),
    (("on", "a", "chair"), 0.15),
    (("down",), 0.1),
)
CHOICES = {"sat": "on", "on": "the", "the": "sofa", "sofa": "."}  # what the model would say
ROOT, GUESS, WINDOW, HIDDEN, KEPT = "#c2410c", "#1d4ed8", "#0f766e", "#f1f5f9", "#16a34a"


class Scene(NamedTuple):
    """What a picture shows.

    Attributes:
        step: Arrays of the step.
        labels: What each slot holds.
        colors: Colour of each slot.
        tree: The draft tree.
        path: Slots of the accepted drafts.
    """

    step: StepInput
    labels: list[str]
    colors: list[str]
    tree: DraftTree
    path: list[int]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="draw nothing, fail if one is stale")
    check = parser.parse_args().check
    stale = [name for name, scene in SCENES.items() if stamp_of(name) != stamp(scene())]
    if check:
        for name in stale:
            print(f"{FOLDER / name} is stale; run python tools/draw_concepts.py", file=sys.stderr)
        return int(bool(stale))
    FOLDER.mkdir(exist_ok=True)
    for name in SCENES:
        (FOLDER / name).write_bytes(draw(name))
    return 0


def lookahead_step() -> Scene:
    """A fixed step with W=5, N=4, G=2: the last token, two guesses of three, three window rows."""
    tree = DraftTree()
    tree.reset(0, max_nodes=99, max_depth=99)
    guesses = [[1, 2, 3], [4, 5, 6]]
    for rank, guess in enumerate(guesses, start=1):
        tree.add_chain(guess, 1 / rank, "pool")
    tree.arrange()
    window = [[0] * SHAPE.window for _ in range(SHAPE.ngram - 1)]
    step = StepLayout(SHAPE, SPEC).arrange(tree, LENGTH, window)
    labels = ["last token"]
    labels += [f"guess {g}, token {t}" for g in (1, 2) for t in (1, 2, 3)]
    labels += [
        f"window {row}, column {column}"
        for row in range(SHAPE.ngram - 1)
        for column in range(SHAPE.window)
    ][1:]
    colors = [ROOT, *[GUESS] * (len(tree) - 1), *[WINDOW] * SHAPE.window_slots]
    return Scene(step, labels, colors, tree, [])


def draft_tree() -> Scene:
    """Drafts that share beginnings, and the path that the model's own choices take through them."""
    tree = DraftTree()
    tree.reset(0, max_nodes=99, max_depth=99)
    for chain, score in CHAINS:
        tree.add_chain([WORDS.index(word) for word in chain], score, "suffix")
    tree.arrange()
    words = [WORDS[token] for token in tree.tokens]
    chosen = [*WORDS, "."]
    path = walk(
        tree.children,
        lambda node: chosen.index(CHOICES[words[node]]),
        eos=frozenset(),
        budget=99,
    ).path
    step = StepLayout(PLAIN, SPEC).arrange(tree, LENGTH, None)
    colors = [ROOT, *(KEPT if slot in path else GUESS for slot in range(1, len(tree)))]
    return Scene(step, words, colors, tree, path)


SCENES: dict[str, Callable[[], Scene]] = {
    "lookahead-step.svg": lookahead_step,
    "draft-tree.svg": draft_tree,
}


def stamp(scene: Scene) -> str:
    """A digest of what is drawn and of how."""
    step, labels, colors, tree, path = scene
    content = [step.positions, step.visible.tolist(), labels, colors, tree.parents, path]
    digest = hashlib.sha256(repr(content).encode())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


def stamp_of(name: str) -> str:
    """The digest that a picture carries, empty if there is none."""
    path = FOLDER / name
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = re.search(r"drawn from ([0-9a-f]{64})", text)
    return found[1] if found else ""


def draw(name: str) -> bytes:
    """One picture as SVG; the same bytes every time."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    scene = SCENES[name]()
    settings = {"svg.hashsalt": "lade", "svg.fonttype": "none", "font.family": "sans-serif"}
    with rc_context(settings):
        if scene.path:
            figure = Figure(figsize=(9, 3.6), layout="constrained")
            left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
            draw_tree(left, scene)
            draw_mask(right, scene)
        else:
            figure = Figure(figsize=(7.4, 6.2), layout="constrained")
            draw_mask(figure.subplots(), scene)
        out = io.BytesIO()
        about = f"drawn from {stamp(scene)}"
        figure.savefig(
            out, format="svg", bbox_inches="tight",
            metadata={"Date": None, "Creator": None, "Description": about},
        )  # fmt: skip
    return b"\n".join(line.rstrip() for line in out.getvalue().splitlines()) + b"\n"


def draw_mask(axes: Any, scene: Scene) -> None:
    """A square for every pair of slots, coloured where the row's token sees the column's."""
    from matplotlib.patches import Rectangle

    step, width = scene.step, len(scene.labels)
    axes.add_patch(Rectangle((0, 0), width, width, color=HIDDEN, lw=0))
    for row in range(width):
        for column in step.visible[row].nonzero()[0].tolist():
            color = scene.colors[column]
            axes.add_patch(Rectangle((column, row), 1, 1, color=color, lw=0))
        offset = step.positions[row] - LENGTH
        axes.text(width + 0.2, row + 0.5, f"P+{offset}" if offset else "P", va="center", fontsize=7)
    lines = range(width + 1)
    axes.hlines(lines, 0, width, color="white", lw=2)
    axes.vlines(lines, 0, width, color="white", lw=2)
    axes.text(width + 0.2, -0.4, "position", va="center", fontsize=7)
    axes.set(xlim=(0, width + 2.4), ylim=(width, -0.9), aspect="equal")
    axes.set_yticks([slot + 0.5 for slot in range(width)], scene.labels, fontsize=7)
    axes.set_xticks([slot + 0.5 for slot in range(width)], range(width), fontsize=7)
    axes.set_xlabel("slot that is seen, after the P committed ones", fontsize=8)
    _bare(axes)


def draw_tree(axes: Any, scene: Scene) -> None:
    """Nodes by depth, slot numbers in front of the words, accepted ones in green."""
    tree = scene.tree
    places = _rows(tree.parents)
    for node in range(1, len(tree)):
        parent = tree.parents[node]
        kept = node in scene.path
        axes.plot(
            [tree.depths[parent], tree.depths[node]], [places[parent], places[node]],
            color=KEPT if kept else "#94a3b8", lw=2.5 if kept else 1.2, zorder=1,
        )  # fmt: skip
    for node, word in enumerate(scene.labels):
        axes.text(
            tree.depths[node], places[node], f"{node}  {word}", ha="center", va="center",
            color="white", fontsize=9,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": scene.colors[node], "linewidth": 0},
        )  # fmt: skip
    axes.set(xlim=(-0.5, max(tree.depths) + 0.6), ylim=(max(places) + 0.6, -0.6))
    axes.set_xticks(range(max(tree.depths) + 1))
    axes.set_xticklabels(["last token", *(f"P+{d}" for d in range(1, max(tree.depths) + 1))])
    axes.tick_params(labelsize=8)
    axes.set_yticks([])
    _bare(axes)


def _rows(parents: Sequence[int]) -> list[float]:
    """Height of each node: leaves one below the other, a parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in parents]
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
    places = [0.0] * len(parents)
    leaves = 0

    def place(node: int) -> float:
        nonlocal leaves
        if children[node]:
            below = [place(child) for child in children[node]]
            places[node] = (below[0] + below[-1]) / 2
        else:
            places[node] = float(leaves)
            leaves += 1
        return places[node]

    place(0)
    return places


def _bare(axes: Any) -> None:
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


if __name__ == "__main__":
    sys.exit(main())
