"""Several workers, each a process with its own GPU, over NCCL; and NCCL's calls by one worker alone."""

import os
import signal
from contextlib import closing

import pytest
import torch
from conftest import write_data
from support.gpu import on_gpu
from support.oracle.worker_cases import RULES, workflow_of
from support.runs.dask_crew import crew_driver
from support.runs.harness import run

from pipeline.cluster.crew import WorkerSpec
from pipeline.cluster.pool import WorkerPool
from pipeline.comm.group import Group, GroupSettings, Store
from pipeline.device.gpu import read_gpus
from pipeline.records import Rank
from pipeline.run import main
from pipeline.workflow import Workers

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(on_gpu.reason()), reason=on_gpu.reason() or "there is a GPU"),
    pytest.mark.filterwarnings("ignore"),
]
NUM_GPUS = 0 if on_gpu.reason() else len(read_gpus())
SEVERAL = pytest.mark.skipif(NUM_GPUS < 2, reason=f"there are {NUM_GPUS} GPUs that NVML reports")
TIERS = {"device_rows": 400, "host_rows": 60, "chunk_rows": 16, "ring_rows": 600}
SETTINGS = {"batch_size": 32, "block_batches": 2, "args": {"hidden": (32, 32)}}
WORKERS = Workers(shards=16, silent_seconds=10.0, timeout_seconds=60.0, check_collectives=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("gpus"), num_train=600, num_keys=120)


def on_cuda(root, name="adam", **changes):
    workflow = workflow_of(root, RULES[name], **(SETTINGS | changes))
    return workflow.model_copy(update={"device": "cuda", "workers": WORKERS})


WORLDS = [1, *(pytest.param(world, marks=SEVERAL) for world in sorted({2, max(2, NUM_GPUS)}))]


@pytest.fixture(scope="module", params=WORLDS)
def pool(request):
    gpus = tuple(gpu.uuid for gpu in read_gpus()[: request.param])
    with closing(WorkerPool(WorkerSpec(request.param, None, gpus))) as pool:
        yield pool


@pytest.fixture
def group():
    group = Group(Store("127.0.0.1", serves=True), "alone", Rank(), GroupSettings("lo", check=True, on_gpus=True))
    yield group
    torch.cuda.synchronize()


def numbers(*values):
    return torch.tensor(values, dtype=torch.float32, device="cuda")


def test_one_worker_alone_sums_over_nccl_to_what_it_gave(group):
    """By itself: the calls are those of many, and what comes back is what was given."""
    vector = numbers(1, 2, 3, 4)
    group.all_reduce(vector, "dense")
    assert group.reduce_scatter(vector, "merge").tolist() == [1, 2, 3, 4]
    group.all_gather(vector, "merge")
    square = torch.full((1,), 2.0, dtype=torch.float64, device="cuda")
    group.all_reduce(square, "agreement")
    assert (vector.tolist(), square.tolist()) == ([1, 2, 3, 4], [2.0])


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_one_worker_sends_itself_rows_over_nccl(group, rows):
    sent, received = torch.rand(rows, 3, device="cuda"), torch.empty(rows, 3, device="cuda")
    group.all_to_all(sent, [rows], received, [rows], "rows")
    assert torch.equal(sent, received)


def test_a_sum_is_done_in_the_order_of_its_stream(group):
    """What is given before is done before, and what comes after sees the sum, on a stream that is not the default."""
    with torch.cuda.stream(torch.cuda.Stream()):
        vector = torch.zeros(1 << 22, device="cuda")
        for _ in range(20):
            vector += 1
            group.all_reduce(vector, "dense")
        vector *= 2
        assert vector.min().item() == vector.max().item() == 40


def fingerprint(workflow, run_dir, pool, **tiers):
    result = crew_driver(workflow, run_dir, pool, **tiers).run()
    return result["fingerprint"], [epoch["auc"] for epoch in result["epochs"]]


def test_gpus_train_the_same_bits_with_any_tiers_and_blocks(root, pool, tmp_path):
    first, again = (fingerprint(on_cuda(root), tmp_path / name, pool, **TIERS) for name in ("one", "two"))
    assert again == first
    assert fingerprint(on_cuda(root, block_batches=5, look_ahead=1), tmp_path / "large", pool) == first


@pytest.mark.parametrize("name", [name for name in RULES if name != "ftrl"])
def test_gpus_train_to_the_metrics_of_one_gpu_within_tolerance(root, pool, tmp_path, name):
    """But for ftrl, which takes a model of the tests' own. To what sums in another order come to after an epoch."""
    workflow = on_cuda(root, name)
    many = crew_driver(workflow, tmp_path / "many", pool, **TIERS).run()
    one = run(workflow, **TIERS)
    assert many["rows"] == one["rows"]
    for of_many, of_one in zip(many["epochs"], one["epochs"], strict=True):
        assert of_many["examples"] == of_one["examples"]
        assert of_many["logloss"] == pytest.approx(of_one["logloss"], rel=0.02)
        assert of_many["auc"] == pytest.approx(of_one["auc"], abs=0.03)


def test_a_run_recovers_from_a_killed_gpu_worker(root, pool, tmp_path):
    workflow = on_cuda(root, epochs=2)
    workflow = workflow.model_copy(update={"commit": workflow.commit.model_copy(update={"every_blocks": 3})})
    expected = fingerprint(workflow, tmp_path / "undisturbed", pool, **TIERS)
    killed = []

    def kill(examples):
        if examples >= 300 and not killed:
            killed.append(driver.crew.machines[-1].pid)
            os.kill(killed[0], signal.SIGKILL)

    driver = crew_driver(workflow, tmp_path / "run", pool, kill, **TIERS)
    result = driver.run()
    assert any("restart from the last commit" in line for line in driver.progress.lines), (
        "nobody was lost: this shows nothing"
    )
    assert (result["fingerprint"], [epoch["auc"] for epoch in result["epochs"]]) == expected


def test_more_workers_than_gpus_are_refused(tmp_path, capsys):
    file = os.path.join(os.path.dirname(__file__), "..", "..", "workflows", "quickstart.py")
    arguments = ["--workers", str(NUM_GPUS + 1), "--set", "device=cuda", "--set", "workers.shards=256"]
    assert main([file, "--run-dir", str(tmp_path / "run"), *arguments]) == 2
    assert f"{NUM_GPUS} can be used here (seen by NVML" in capsys.readouterr().err
