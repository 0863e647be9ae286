"""The comparison with other engines: who runs when, what counts, what the page says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import bench_peers
import numpy as np
import pytest
from peers.catalogue import Candidate, Environment
from peers.measure import Prompt, measure
from peers.process import PeerError, WorkerProcess
from peers.recorder import Recorder
from peers.setup import Setup, SetupError
from peers.summary import PeerQuality, Run, Scores, Speeds, fastest, quality
from peers.table import Result, as_markdown
from peers.worker import cross_entropy

from lade_edge.engines import ConfigError
from lade_edge.runtime.bench.prompts import BenchPrompt

PEER, OTHER, INT8 = ("llama.cpp gguf", "plain"), ("openvino int4", "lookup"), ("ours int8", "auto")


def run(
    key: tuple[str, str],
    tokens: int,
    seconds: float,
    *,
    category: str = "writing",
    number: int = 0,
    first: int = 1,
    prompt: str = "a",
) -> Run:
    return Run(
        engine=key[0],
        mode=key[1],
        prompt=prompt,
        category=category,
        round=number,
        ids=tuple(range(tokens)),
        first=first,
        seconds=seconds,
    )


def two_categories() -> list[Run]:
    """The peer runs at 10 and 40 tokens a second, ours at 30 and 30."""
    return [
        run(PEER, 11, 1.0),
        run(INT8, 31, 1.0),
        run(PEER, 41, 1.0, category="math"),
        run(INT8, 31, 1.0, category="math"),
    ]


def test_a_category_is_all_its_tokens_over_all_their_time() -> None:
    runs = [run(PEER, 11, 1.0), run(PEER, 91, 3.0, prompt="b"), run(PEER, 1, 0.0, prompt="c")]
    assert Speeds(runs).of(PEER, "writing") == pytest.approx(100 / 4)


def test_what_came_first_together_is_not_timed() -> None:
    assert Speeds([run(PEER, 11, 1.0, first=5)]).of(PEER, "writing") == pytest.approx(6)


def test_means_over_categories_are_geometric() -> None:
    speeds = Speeds(two_categories())
    assert speeds.mean(PEER) == pytest.approx(20)
    assert speeds.mean(INT8) == pytest.approx(30)
    assert speeds.compare(INT8, PEER).ratio == pytest.approx(1.5)


def test_ratios_are_taken_within_rounds() -> None:
    """A machine twice as slow in one round changes no ratio."""
    runs = []
    for number, slow in enumerate((1.0, 2.0, 4.0)):
        runs += [run(PEER, 11, slow, number=number), run(INT8, 21, slow, number=number)]
    speeds = Speeds(runs)
    assert speeds.compare(INT8, PEER).by_category == {"writing": pytest.approx(2)}
    assert speeds.of(PEER, "writing") == pytest.approx(5)  # the median round


def test_categories_not_ahead_are_named_slowest_first() -> None:
    runs = [*two_categories(), run(PEER, 21, 1.0, category="qa"), run(INT8, 11, 1.0, category="qa")]
    assert Speeds(runs).compare(INT8, PEER).not_ahead == {
        "qa": pytest.approx(0.5),
        "math": pytest.approx(0.75),
    }


def test_a_category_without_tokens_to_time_is_left_out_for_all() -> None:
    runs = [*two_categories(), run(PEER, 11, 1.0, category="qa"), run(INT8, 1, 0.0, category="qa")]
    speeds = Speeds(runs)
    assert speeds.categories == ["writing", "math"]
    assert speeds.left_out == ["qa"]
    assert speeds.mean(PEER) == pytest.approx(20)


def test_ids_are_compared_with_the_same_engines_plain_mode() -> None:
    lookup = ("llama.cpp gguf", "lookup 2")
    runs = [run(PEER, 5, 1.0), run(PEER, 6, 1.0, prompt="b")]
    runs += [run(lookup, 5, 1.0), run(lookup, 5, 1.0, prompt="b")]
    speeds = Speeds([*runs, run(INT8, 5, 1.0)])
    assert speeds.same_ids(lookup) == (1, 2)
    assert speeds.same_ids(PEER) is None
    assert speeds.same_ids(INT8) is None  # its plain mode wasn't run


def test_quality_is_relative_to_the_reference() -> None:
    reference = Scores(losses=[1.0, 2.0], best=[3, 4])
    found = quality(Scores(losses=[1.2, 2.2], best=[3, 5]), reference)
    assert found.perplexity_ratio == pytest.approx(math.exp(0.2))
    assert found.top1_agreement == 0.5


def test_loss_is_the_log_of_the_softmax() -> None:
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32)) + 70
    assert cross_entropy(logits, [1, 2]) == pytest.approx([math.log(4), -math.log(0.8)], rel=1e-5)


def test_the_fastest_peer_is_near_lossless() -> None:
    speeds = Speeds([run(PEER, 11, 1.0), run(OTHER, 91, 1.0), run(INT8, 95, 1.0)])
    peers = [PEER[0], OTHER[0]]
    lossless = PeerQuality(perplexity_ratio=1.0, top1_agreement=1.0)
    lossy = PeerQuality(perplexity_ratio=1.03, top1_agreement=0.9)
    assert fastest(speeds, {PEER[0]: lossless, OTHER[0]: lossy}, peers) == PEER
    assert fastest(speeds, {PEER[0]: lossless, OTHER[0]: lossless}, peers) == OTHER
    assert fastest(speeds, {OTHER[0]: lossy}, peers) is None


def test_a_recorder_ends_at_an_end_token_or_the_limit() -> None:
    recorder = Recorder(ends=[2], count=10)
    assert not recorder.add([5, 6])
    assert recorder.add([7, 2, 9])
    assert recorder.add([9])
    found = recorder.result()
    assert (found["ids"], found["first"]) == ([5, 6, 7, 2], 2)
    assert found["seconds"] > 0
    assert Recorder(ends=[], count=2).add([1, 1, 1])


class Scripted:
    """A worker that counts on one clock; its processor time runs while others work if it spins."""

    def __init__(self, clock: list[float], *, spins: bool = False, fails_at: int = -1) -> None:
        self.asked: list[tuple[str, int]] = []
        self._clock, self._spins, self._fails_at = clock, spins, fails_at

    def ask(self, **request: Any) -> dict[str, Any]:
        self.asked.append((request["mode"], request["count"]))
        self._clock[0] += 1.0
        if len(self.asked) - 1 == self._fails_at:
            raise PeerError("out of memory")
        return {"ids": [1] * request["count"], "first": 1, "seconds": 1.0}

    def processor_s(self) -> float:
        return self._clock[0] if self._spins else 0.0


PROMPTS = [Prompt(id=name, category=name, ids=[1]) for name in ("writing", "math")]


def test_every_mode_runs_every_prompt_and_the_warm_up_is_dropped() -> None:
    clock = [0.0]
    workers = {"one": Scripted(clock), "two": Scripted(clock)}
    modes = {"one": ["plain", "auto"], "two": ["plain"]}
    order: list[str] = []
    found = measure(workers, modes, PROMPTS, max_new_tokens=40, rounds=2, tell=order.append)
    assert len(found.runs) == 3 * 2 * 2
    assert workers["one"].asked[:2] == [("plain", 16), ("auto", 16)]
    assert {count for _, count in workers["one"].asked[2:]} == {40}
    assert all(len(one.ids) == 40 for one in found.runs)
    first = [next(r for r in found.runs if (r.prompt, r.round) == at) for at in _turns()]
    assert [(r.engine, r.mode) for r in first] == [
        ("one", "plain"), ("one", "auto"), ("two", "plain"), ("one", "plain"),
    ]  # fmt: skip
    assert len(order) == 4


def _turns() -> list[tuple[str, int]]:
    return [(prompt.id, number) for number in range(2) for prompt in PROMPTS]


def test_a_mode_that_fails_is_named_and_counts_nowhere() -> None:
    clock = [0.0]
    workers = {"one": Scripted(clock, fails_at=2), "two": Scripted(clock)}
    modes = {"one": ["plain"], "two": ["plain"]}
    found = measure(workers, modes, PROMPTS, max_new_tokens=4, rounds=2, tell=lambda what: None)
    assert found.failures == {("one", "plain"): "out of memory"}
    assert {one.engine for one in found.runs} == {"two"}
    assert len(workers["one"].asked) == 3
    assert len(found.runs) == 4


def test_an_idle_worker_that_spins_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("peers.measure.perf_counter", lambda: clock[0])
    workers = {"quiet": Scripted(clock), "spinning": Scripted(clock, spins=True)}
    modes = {name: ["plain"] for name in workers}
    found = measure(workers, modes, PROMPTS, max_new_tokens=4, rounds=1, tell=lambda what: None)
    assert found.idle_share == {"quiet": 0.0, "spinning": pytest.approx(1.0)}


def page(runs: list[Run], qualities: dict[str, PeerQuality], missing: dict[str, str]) -> str:
    result = Result(
        command="python tools/bench_peers.py -n 4",
        model="tiny.gguf",
        machine={
            "cpu": "a processor", "cores": 2, "flags": ["avx512_vnni"], "memory_gb": 8.0,
            "system": "Linux", "load_average": 0.25, "date": "2001-02-03",
        },
        threads=2,
        prompts=2,
        max_new_tokens=4,
        speeds=Speeds(runs),
        qualities=qualities,
        reference="transformers fp32",
        versions={"llama.cpp gguf": {"llama-cpp-python": "1.2.3"}},
        idle_share={"llama.cpp gguf": 0.031, "ours int8": 0.002},
        missing=missing,
    )  # fmt: skip
    return as_markdown(result)


def test_the_page_says_what_was_measured() -> None:
    lossless = PeerQuality(perplexity_ratio=1.001, top1_agreement=0.987)
    text = page(
        two_categories(), {PEER[0]: lossless}, {"openvino int4": "no wheel for this Python"}
    )
    lines = text.splitlines()
    assert "python tools/bench_peers.py -n 4" in lines
    assert "| llama.cpp gguf | plain | 20.0 | 1.00 | 1.001 | 98.7% |  | 1.50 |" in lines
    assert "| ours int8 auto | 30 | 30 |" in lines
    claim = next(line for line in lines if "ours int8 auto over llama.cpp gguf plain" in line)
    assert "**1.50**; not ahead in math 0.75" in claim
    assert "- openvino int4: no wheel for this Python" in lines
    for words in (
        "2001-02-03",
        "a processor",
        "avx512_vnni",
        "llama-cpp-python 1.2.3",
        "3.1% of a",
    ):
        assert words in text


def test_claims_wait_for_what_they_compare() -> None:
    text = page(two_categories(), {}, {})
    assert "**" not in text  # no quality, no near-lossless peer
    ahead = [
        replace(one, seconds=one.seconds / 9) if one.engine == INT8[0] else one
        for one in two_categories()
    ]
    lossless = {PEER[0]: PeerQuality(perplexity_ratio=1.0, top1_agreement=1.0)}
    assert "ahead in every category" in page(ahead, lossless, {})


def rows() -> list[BenchPrompt]:
    return [
        BenchPrompt(id=f"{category}{n}", category=category, text="x", raw=False)
        for category in ("math", "qa")
        for n in range(3)
    ]


def test_prompts_are_the_first_of_each_category() -> None:
    assert [row.id for row in bench_peers.choose(rows(), None, 2)] == [
        "math0",
        "math1",
        "qa0",
        "qa1",
    ]
    assert [row.id for row in bench_peers.choose(rows(), ["qa"], 1)] == ["qa0"]
    with pytest.raises(ConfigError, match="no prompt is of category maths; there are math, qa"):
        bench_peers.choose(rows(), ["maths"], None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--per-category", "0"], "--per-category is 0; expected 1 or more"),
        (["--gguf", "nowhere.gguf"], "nowhere.gguf does not exist"),
        (["--write", "nowhere/peers.md"], "nowhere/peers.md can't be written (No such file"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl can't be read"),
        (["--bundles", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    gguf = [] if "--gguf" in words else ["--gguf", "model.gguf"]
    assert bench_peers.main([*words, *gguf]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_installer_that_fails_is_quoted(tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path / "model.gguf", lambda what: None)
    here = f"no-such-package @ file://{tmp_path}/missing.whl"
    with pytest.raises(SetupError, match=r"missing\.whl"):
        setup.python(Environment(name="nothing", requirements=(here,)))
    assert not (tmp_path / "nothing" / "venv" / "peer-installed").exists()


def test_models_of_one_name_are_told_apart(tmp_path: Path) -> None:
    copy = "import os, shutil, sys; shutil.copytree(os.path.dirname(sys.argv[1]), sys.argv[2])"
    candidate = Candidate(
        engine="x", precision="fp32", environment=None, module="x",
        conversion=("python", "-c", copy, "{gguf}", "{out}"),
    )  # fmt: skip
    found = []
    for content in ("a", "b", "a"):
        folder = tmp_path / content
        folder.mkdir(exist_ok=True)
        (folder / "model.gguf").write_text(content)
        setup = Setup(tmp_path / "cache", folder / "model.gguf", lambda what: None)
        found.append(setup.model(candidate))
    assert found[0] == found[2] != found[1]
    (found[0] / "used").touch()
    assert (setup.model(candidate) / "used").exists()
    other = replace(candidate, conversion=(*candidate.conversion, "more"))
    assert not (setup.model(other) / "used").exists()  # made again


def test_this_projects_worker_generates_and_scores(tiny_bundle: Path, tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path / "model.gguf", lambda what: None)
    worker = WorkerProcess(setup.python(None), "peers.engine_lade", tmp_path / "worker.log")
    try:
        told = worker.ask(do="load", path=str(tiny_bundle), threads=1, ends=[2])
        assert told["modes"] == ["plain", "auto"]
        ids = [5, 6, 7, 5, 6, 7, 5, 6]
        found = [worker.ask(do="generate", mode=mode, ids=ids, count=9) for mode in told["modes"]]
        assert found[0]["ids"] == found[1]["ids"]
        scores = worker.ask(do="score", sequences=[ids, [*ids, *found[0]["ids"]]])
        assert (
            len(scores["losses"]) == len(scores["best"]) == 2 * len(ids) - 2 + len(found[0]["ids"])
        )
        # plain decoding takes the best token at every place
        assert scores["best"][-len(found[0]["ids"]) :] == found[0]["ids"]
        with pytest.raises(PeerError, match="mode"):
            worker.ask(do="generate", mode="telepathy", ids=ids, count=2)
        assert worker.processor_s() > 0
    finally:
        worker.close()


def test_a_worker_without_its_library_says_so(tmp_path: Path) -> None:
    setup = Setup(tmp_path, tmp_path / "model.gguf", lambda what: None)
    worker = WorkerProcess(setup.python(None), "peers.engine_nobody", tmp_path / "worker.log")
    try:
        with pytest.raises(PeerError, match=r"No module named 'peers\.engine_nobody'"):
            worker.ask(do="load", path="x", threads=1, ends=[])
    finally:
        worker.close()
