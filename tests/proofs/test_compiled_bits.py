"""The compiled dense part has the same bits over tiers, executors, processes, caches and resumes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_workflow, write_data
from support.faults.killed_after_commit import changed, kill_after
from support.oracle.models import MODELS
from support.runs.crew_threads import crew_driver, train, workers_of
from support.runs.harness import THREE_TIERS, make_driver, run
from torch import nn

from pipeline.errors import PipelineError
from pipeline.settings.optimizer import KStep
from pipeline.training import compiled
from pipeline.workflow import Commit

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
DEEP = {"hidden": (5,), "batch_norm": True, "dropout": 0.3}
PRECISIONS = ("float32", "bfloat16")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Fifteen full batches of six, and a tail of two."""
    return write_data(tmp_path_factory.mktemp("compiled"), num_train=92, num_keys=30)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def make(root, cache):
    def make(**changes: Any):
        model = {"model__compile": True, "model__compile_cache": cache}
        for name in ("precision", "compile", "compile_cache"):
            if name in changes:
                model[f"model__{name}"] = changes.pop(name)
        workflow = make_workflow(root, **({"args": DEEP, "threads": 2} | changes))
        return changed(workflow.model_copy(update={"commit": Commit(every_blocks=3)}), **model)

    return make


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiers_executors_blocks_and_resumes_change_no_bit(make, client, precision, tmp_path, monkeypatch):
    workflow = make(precision=precision)
    whole = run(workflow)["fingerprint"]
    assert run(workflow, **THREE_TIERS)["fingerprint"] == whole
    assert run(workflow, client, **THREE_TIERS)["fingerprint"] == whole
    assert run(changed(workflow, schedule__block_batches=5), client)["fingerprint"] == whole
    # Blocks of two batches of 16: the first commit is in the middle of an epoch, the third after its tail.
    for commits in (1, 3, 4):
        kill_after(commits, workflow, tmp_path / str(commits), monkeypatch)
        assert make_driver(workflow, tmp_path / str(commits), client, **THREE_TIERS).run()["fingerprint"] == whole


def test_a_resume_right_before_a_tail_changes_no_bit(make, tmp_path, monkeypatch):
    workflow = make(block_batches=5).model_copy(update={"commit": Commit(every_blocks=1)})
    whole = run(workflow)["fingerprint"]
    kill_after(3, workflow, tmp_path, monkeypatch)
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
    assert driver.committer.position.batch == 15
    assert driver.run()["fingerprint"] == whole


CHILD = """
import sys
from pathlib import Path
from support.runs.harness import run
from pipeline.workflow import Workflow
for file in sys.argv[1:]:
    print(run(Workflow.model_validate_json(Path(file).read_text()), device_rows=130, host_rows=24)["fingerprint"])
"""


def fingerprints_in_own_process(workflows, folder):
    files = [folder / f"workflow{number}.json" for number in range(len(workflows))]
    for file, workflow in zip(files, workflows, strict=True):
        file.write_text(workflow.model_dump_json())
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-W", "error", "-c", CHILD, *map(str, files)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-len(files) :]


@pytest.mark.prove(weekly=True)
def test_cold_and_warm_caches_give_the_same_bits(make, cache, tmp_path):
    """The warm one is what this process made."""
    here = [run(make(precision=precision), **THREE_TIERS)["fingerprint"] for precision in PRECISIONS]
    for folder in (cache, tmp_path / "cold"):
        assert folder.exists() == (folder is cache)
        workflows = [make(precision=precision, compile_cache=folder) for precision in PRECISIONS]
        assert fingerprints_in_own_process(workflows, tmp_path) == here
        assert any(folder.iterdir())


def test_sample_inputs_have_the_layout_of_true_ones(make):
    torch._dynamo.utils.counters.clear()
    run(make(weight="importance", args=DEEP | {"hidden": (6,)}), **THREE_TIERS)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def learned(workflow, folder, world):
    folder.mkdir()
    with crew_driver(workflow, folder, world) as driver:
        train(driver)
        losses = driver.history.state()
        dense = [{n: v.tobytes() for n, v in worker.dense().items()} for worker in workers_of(driver)]
    return losses, dense


@pytest.mark.parametrize("merge", [None, KStep(k=2)], ids=["synchronous", "k-step"])
def test_several_workers_train_compiled_shares_to_the_same_bits(make, merge, tmp_path):
    # Without dropout: workers in threads share the process's random generator.
    workflow = changed(make(batch_size=11, args=DEEP | {"dropout": 0.0}), optimizer__merge=merge)
    if merge:
        workflow = changed(workflow, optimizer__dense=workflow.optimizer.dense.model_copy(update={"eps": 1e-4}))
    _, once = learned(workflow, tmp_path / "once", 2)
    _, again = learned(workflow, tmp_path / "again", 2)
    assert once == again


@pytest.mark.parametrize("name", MODELS)
def test_each_model_learns_compiled_what_it_learns_eagerly(make, name):
    kind, args = MODELS[name]
    workflow = make(kind=kind, args=args)
    workflow = changed(workflow, optimizer__dense=workflow.optimizer.dense.model_copy(update={"eps": 1e-4}))
    losses = [run(changed(workflow, model__compile=compiles))["epochs"][-1]["logloss"] for compiles in (False, True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


class Counts(nn.Module):
    """Depends on a number of Python that changes at each step."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.linear, self.steps = nn.Linear(num_fields * embedding_dim, 1), 1

    def forward(self, numbers, embeddings, first_order):
        self.steps += 1
        return self.linear(embeddings.flatten(1)).squeeze(1) / self.steps


class Breaks(nn.Module):
    """Leaves torch in the middle of its forward pass."""

    def __init__(self, num_fields, num_numbers, embedding_dim):
        super().__init__()
        self.linear = nn.Linear(num_fields * embedding_dim, 1)

    def forward(self, numbers, embeddings, first_order):
        torch._dynamo.graph_break()
        return self.linear(embeddings.flatten(1)).squeeze(1)


@pytest.mark.prove(weekly=True)
def test_a_model_compiled_at_each_step_ends_the_run(make):
    with pytest.raises(PipelineError, match=r"the dense model Counts changes as it trains, .* model.compile to false"):
        run(make(kind=Counts, args={}))


def test_a_model_of_several_graphs_trains_the_same_bits(make, client):
    workflow = make(kind=Breaks, args={})
    assert run(workflow)["fingerprint"] == run(workflow, client, **THREE_TIERS)["fingerprint"]


@pytest.mark.prove(weekly=True)
def test_one_process_trains_more_models_than_torch_caches(make):
    workflow = make(epochs=1)
    assert len({run(workflow)["fingerprint"] for _ in range(10)}) == 1


def test_a_compiler_that_fails_later_ends_the_run(make, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "options", lambda device: {"cpp.cxx": (None, "false")})
    text = r"torch cannot compile the dense model DeepFM: .*No working C.. compiler"
    with pytest.raises(PipelineError, match=text) as raised:
        run(make(compile_cache=tmp_path, args={"hidden": (7,)}))
    assert "TORCHDYNAMO_VERBOSE" not in str(raised.value)
