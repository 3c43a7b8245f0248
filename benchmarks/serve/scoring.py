"""`pipeline score` against the evaluation of the same split by the run itself, in turn."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.common import spread
from benchmarks.once import Quiet, train
from pipeline.cluster.local import local_client
from pipeline.cluster.local_crew import LocalCrew
from pipeline.device.gpu import choose
from pipeline.driver.driver import Driver
from pipeline.driver.open import folder_of, local_crew
from pipeline.models import DeepFM
from pipeline.preflight.setup import set_up
from pipeline.serving.commit import open_commit
from pipeline.serving.scoring import Scorer, ScoringOrder, score
from pipeline.settings.optimizer import Adam, DenseAdam, Optimizer
from pipeline.storage.lock import RunLock
from pipeline.workflow import Category, Commit, Data, Model, Number, Schedule, Storage, Synthetic, Workflow

KEYS = (200_000, 60_000, 20_000, 6_000, 2_000, 500, 100, 50, 20, 4)
"""Keys of the quickstart. The workflow is the quickstart's, with more test data and one epoch."""


def workflow_of(root: Path, num_train: int, num_test: int, keys: tuple[int, ...]) -> Workflow:
    return Workflow(
        name="scored",
        data=Data(
            root=root, train=("train",), test=("test",), labels=("click",),
            numbers=tuple(Number(name=f"i{n}") for n in range(4)),
            categories=tuple(Category(name=f"c{n}") for n in range(len(keys))),
            synthetic=Synthetic(
                train_examples=num_train, test_examples=num_test, keys_per_field=keys, num_numbers=4, zipf=1.1
            ),
        ),
        model=Model(kind=DeepFM, embedding_dim=8, args={"hidden": (128, 64)}),
        optimizer=Optimizer(rows=Adam(lr=4e-3), dense=DenseAdam(lr=1e-3)),
        storage=Storage(device="14 MiB", host="12 MiB", disk="2 GiB", read="128 MiB", map="32 MiB"),
        schedule=Schedule(batch_size=4096, epochs=1, block_batches=4),
        commit=Commit(every_minutes=None),
        device="cpu",
    )  # fmt: skip


class Clock:
    """Accumulates the seconds of a method, which `patched` replaces by a timed version."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def patched(self, kind: type, name: str) -> Any:
        method = getattr(kind, name)

        def timed(*args: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*args)
            finally:
                self.seconds += time.perf_counter() - begun

        return patch.object(kind, name, timed)


def evaluation_seconds(workflow: Workflow, run_dir: Path) -> tuple[float, float]:
    """Seconds of the evaluation of the test split: of its blocks, including metrics, and including opening the run."""
    begun = time.perf_counter()
    device = choose(workflow.device)
    setup, source = set_up(workflow, device, lambda line: None)
    with RunLock(run_dir), local_client() as client:
        make_crew = local_crew(setup, source, device, client)
        driver = Driver(setup, source, folder_of(setup, run_dir), make_crew, device.model, Quiet()).open()
        driver.begin()
        blocks = driver.agenda.test(0, driver.runner.pace.block_batches)
        with driver.progress:
            started = time.perf_counter()
            refusal = driver.crew.run(blocks, driver.runner.pace.look_ahead, driver.runner.watch)
            ended = time.perf_counter()
        assert refusal is None, refusal.message
        driver.crew.close()
        source.close()
    return ended - started, time.perf_counter() - begun


def scoring_seconds(workflow: Workflow, run_dir: Path, out: Path) -> tuple[float, float]:
    """Seconds of a scoring: of its blocks and files, and in total, including opening, files and metrics."""
    begun, whole, opening = time.perf_counter(), Clock(), Clock()
    with ExitStack() as stack:
        stack.enter_context(whole.patched(Scorer, "run"))
        stack.enter_context(opening.patched(LocalCrew, "open"))
        stack.enter_context(redirect_stderr(StringIO()))
        opened = open_commit(run_dir)
        stack.enter_context(opened.held)
        said = score(opened, ScoringOrder([str(workflow.data.root / "test")], out))
    assert said
    return whole.seconds - opening.seconds, time.perf_counter() - begun


def scoring(folder: Path, repeats: int, num_train: int, num_test: int, quick: bool) -> dict[str, float]:
    """Measure both in turn and print examples per second."""
    workflow = workflow_of(folder / f"scored-{num_train}-{num_test}", num_train, num_test, KEYS[2:] if quick else KEYS)
    run_dir = folder / "run"
    train(workflow, run_dir, Quiet(), keep=True)
    inner: dict[str, list[float]] = {"evaluation": [], "score": []}
    outer: dict[str, list[float]] = {"evaluation": [], "score": []}
    for repeat in range(repeats + 1):
        # The first of each loads kernels and files.
        for name in ("evaluation", "score") if repeat % 2 else ("score", "evaluation"):
            if name == "score":
                one, all_of_it = scoring_seconds(workflow, run_dir, folder / f"out-{repeat}")
            else:
                one, all_of_it = evaluation_seconds(workflow, run_dir)
            if repeat:
                inner[name].append(num_test / one)
                outer[name].append(num_test / all_of_it)
    print(f"\nscoring {num_test:,} examples, examples/s: medians of {repeats}")
    for name in inner:
        print(f"   {name:11} blocks {spread(inner[name])}   with opening {spread(outer[name])}")
    ratio, whole = (statistics.median(of["score"]) / statistics.median(of["evaluation"]) for of in (inner, outer))
    print(f"   score / evaluation {ratio:.3f} (aim: at least 0.9), with opening, files and metrics {whole:.3f}")
    return {"score_vs_evaluation": ratio, "score_vs_evaluation_whole": whole}
