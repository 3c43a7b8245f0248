"""The whole pipeline on a GPU that is late: every result is that of the CPU, bit for bit.

The kernels are the CUDA ones, in Numba's simulator. What they compute has the bits of the CPU's kernels, and the dense
model runs on torch's CPU, so here the two paths can be compared to the last bit.
"""

import itertools
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import NARROW, make_workflow, write_data
from support.data.histories import workflow_with_histories, write_histories
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.gpu.grids import small_grids  # noqa: F401
from support.gpu.late_gpu import LateGpu
from support.runs.harness import make_driver, run, sizes_of

from pipeline.cluster.local import local_client
from pipeline.cluster.local_crew import LocalCrew
from pipeline.device.device import RAM, STREAMS
from pipeline.errors import PipelineError
from pipeline.preflight.sizes import device_table, gpu_bytes
from pipeline.records import FieldLayout
from pipeline.settings.optimizer import Adagrad, Adam, CowClip, DenseAdam, Optimizer, RowWiseAdagrad, Sgd
from pipeline.stages import dedup_on_gpu
from pipeline.stages.dedup_on_gpu import Pending
from pipeline.storage.tier import Slab
from pipeline.worker.placement import OnGpu
from pipeline.workflow import Commit, Metrics

THREE_TIERS = {"device_rows": 100, "host_rows": 24, "chunk_rows": 4, "ring_rows": 300}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("gpu"), num_train=72, num_keys=60)


def workflow_of(root, **changes):
    storage = {"read": "128 KiB"} | changes.pop("storage", {})
    workflow = make_workflow(root, storage=storage, **({"block_batches": 1, "epochs": 1} | changes))
    return workflow.model_copy(update={"metrics": Metrics(group="user", progressive=True)})


def driver_of(workflow, run_dir, device=RAM, client=None):
    return make_driver(workflow, Path(run_dir), client, device=device, **THREE_TIERS)


def result_of(workflow, device=RAM, client=None):
    return run(workflow, client, device, **THREE_TIERS)


@pytest.fixture(scope="module")
def expected(root):
    return result_of(workflow_of(root))


@pytest.mark.parametrize(
    ("look_ahead", "block_batches"), some(itertools.product([1, 2, 3], [1, 3]), (1, 1), (2, 3), several=True)
)
def test_a_gpu_that_is_as_late_as_it_may_be_gives_the_same_bits(root, expected, look_ahead, block_batches):
    got = result_of(workflow_of(root, look_ahead=look_ahead, block_batches=block_batches), LateGpu())
    assert got["fingerprint"] == expected["fingerprint"]
    assert got["epochs"] == expected["epochs"]
    assert got["tiers"]["disk"]["rows_in"] > 50, "nothing came from the disk"
    assert got["examples"] == expected["examples"]


OPTIMIZERS = {
    "dense, clipped norm": Optimizer(rows=Adam(lr=0.05, l2=0.01, semantics="dense"), max_grad_norm=0.1),
    "CowClip": Optimizer(
        rows=Adam(lr=0.05, l2=0.01, semantics="dense", clip=CowClip(zeta=1e-3)),
        dense=DenseAdam(eps_place="keras", warm_up_epochs=0.5, l2=0.01),
    ),
    "dense adagrad": Optimizer(rows=Adagrad(lr=0.05, l2=0.01, semantics="dense")),
    "dense row-wise": Optimizer(rows=RowWiseAdagrad(lr=0.05, l2=0.01, semantics="dense")),
    "sgd": Optimizer(rows=Sgd(lr=0.05, l2=0.01)),
    "adam in bfloat16": Optimizer(rows=Adam(lr=0.05, storage="bfloat16")),
    "dense adam in float16": Optimizer(rows=Adam(lr=0.05, l2=0.01, semantics="dense", storage="float16")),
}


@pytest.mark.parametrize("name", some(OPTIMIZERS, "CowClip", "adam in bfloat16"))
def test_a_gpu_gives_the_same_bits_with_each_optimizer(root, name):
    changes = {"optimizer": OPTIMIZERS[name]}
    workflow = workflow_of(root).model_copy(update=changes)
    expected = result_of(workflow)
    for device in (LateGpu(), LateGpu(seed=1)):
        got = result_of(workflow_of(root, block_batches=3).model_copy(update=changes), device)
        assert got["fingerprint"] == expected["fingerprint"]
        assert got["epochs"] == expected["epochs"]


def test_a_gpu_gives_the_same_bits_with_sequences(tmp_path):
    workflow = workflow_with_histories(
        write_histories(tmp_path, num_train=30, num_keys=40), storage={"read": "128 KiB"}, block_batches=2, epochs=1
    )
    expected = run(workflow, **THREE_TIERS | {"device_rows": 150})
    got = run(workflow, None, LateGpu(), **THREE_TIERS | {"device_rows": 150})
    assert (got["fingerprint"], got["epochs"]) == (expected["fingerprint"], expected["epochs"])


def test_a_killed_run_with_clipped_norms_resumes_on_a_gpu(root, tmp_path, monkeypatch):
    workflow = workflow_of(root).model_copy(
        update={"optimizer": OPTIMIZERS["dense, clipped norm"], "commit": Commit(every_blocks=2)}
    )
    kill_after(2, workflow, tmp_path, monkeypatch, device=LateGpu(), **THREE_TIERS)
    got = driver_of(workflow, tmp_path, LateGpu()).run()
    assert got["fingerprint"] == result_of(workflow)["fingerprint"]


class AnyOrder:
    """An executor that runs its tasks in any order that the edges allow, drawn at random."""

    def __init__(self, call, rng):
        self.call, self._rng, self.todo = call, rng, []

    def submit(self, stage, number, after):
        task = SimpleNamespace(stage=stage, number=number, after=after, done=None)
        self.todo.append(task)
        return task

    def result(self, wanted):
        while wanted.done is None:
            ready = [task for task in self.todo if all(other.done for other in task.after)]
            task = ready[self._rng.integers(len(ready))]
            self.todo.remove(task)
            task.done = self.call(task.stage, task.number)
        return wanted.done

    def settle(self, tasks):
        """Nothing runs outside `result`."""


@pytest.mark.parametrize("seed", some(range(12), 0))
def test_any_order_of_stages_and_streams_gives_the_same_result(root, expected, monkeypatch, seed):
    """Now and then with a stream that runs ahead; what evaluation finds counts as well."""
    rng = np.random.default_rng(seed)
    monkeypatch.setattr(LocalCrew, "executor", lambda self: nullcontext(AnyOrder(self.worker.stages.run, rng)))
    eager = [name for name in STREAMS if rng.random() < 0.3]
    got = result_of(workflow_of(root, look_ahead=1 + seed % 3), LateGpu(eager, seed=seed if seed % 2 else None))
    assert got["fingerprint"] == expected["fingerprint"]
    assert got["epochs"] == expected["epochs"]


def test_arrivals_of_a_block_are_kept_until_it_is_scored(root, expected, monkeypatch):
    """All that prepares blocks goes first, and uploads are done at once, as late as training is."""
    order = ["write_back", "upload", "prefetch", "plan", "dedup", "read", "train"]

    class First:
        def integers(self, count):
            ready = [task for task in executor.todo if all(other.done for other in task.after)]
            return min(range(count), key=lambda n: (order.index(ready[n].stage), ready[n].number))

    executor = AnyOrder(None, First())

    def open_executor(crew):
        executor.call = crew.worker.stages.run
        return nullcontext(executor)

    monkeypatch.setattr(LocalCrew, "executor", open_executor)
    got = result_of(workflow_of(root, look_ahead=1), LateGpu(("up",)))
    assert got["epochs"] == expected["epochs"]
    assert got["fingerprint"] == expected["fingerprint"]


def test_plan_gets_its_keys_without_waiting_for_training(root, monkeypatch):
    """The keys do not stand behind blocks that wait for steps to come."""
    get, seen = Pending.get, []

    def watched(pending):
        pending.done.wait()
        before = sum(len(stream.todo) for stream in pending.device.streams if stream.name == "train")
        got = get(pending)
        seen.append(before - sum(len(stream.todo) for stream in pending.device.streams if stream.name == "train"))
        return got

    monkeypatch.setattr(Pending, "get", watched)
    result_of(workflow_of(root), LateGpu())
    assert len(seen) > 10
    assert set(seen) == {0}


def test_a_gpu_under_dask_gives_the_same_bits(root, expected):
    with local_client() as client:
        got = result_of(workflow_of(root, epochs=1), LateGpu(seed=9), client)
    assert got["fingerprint"] == expected["fingerprint"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data.weight": "importance"},
        {"schedule.epochs": 2, "optimizer.dense.average": 4, "model.initial_bias": -1.5},
    ],
    ids=["weights", "averages and a bias"],
)
def test_changes_of_the_training_give_the_same_bits_on_a_gpu(root, changes):
    workflow = workflow_of(root).with_settings(changes)
    got, expected = result_of(workflow, LateGpu()), result_of(workflow)
    assert (got["fingerprint"], got["epochs"]) == (expected["fingerprint"], expected["epochs"])


@pytest.mark.parametrize("name", some(OPTIMIZERS, "dense adam in float16"))
def test_narrow_fields_give_the_same_bits_on_a_gpu(root, name):
    workflow = workflow_of(root, categories=NARROW).model_copy(update={"optimizer": OPTIMIZERS[name]})
    assert result_of(workflow, LateGpu())["fingerprint"] == result_of(workflow)["fingerprint"]


LEFT_OUT = {
    "train does not wait for what upload brings": (("train", "up"), ()),
    "victims are copied before they have left": (("down", "train"), ("down",)),
    "a block is deduplicated into the index of one that trains": (("unique", "train"), ("unique",)),
    "write_back does not wait for the swap": (("host", "down"), ()),
    "plan does not wait for the keys to be found": (("host", "unique"), ()),
    "plan does not wait for the keys to come": (("host", "keys"), ()),
    "a commit does not wait for the rows": (("host", "train"), ()),
}


@pytest.mark.prove
@pytest.mark.parametrize("eager", sorted({eager for _, eager in LEFT_OUT.values()}), ids=str)
def test_with_all_waits_any_stream_order_gives_the_same_bits(root, expected, eager):
    """The wait that is left out below is what spoils a result."""
    assert result_of(workflow_of(root), LateGpu(eager))["fingerprint"] == expected["fingerprint"]


@pytest.mark.parametrize("what", LEFT_OUT)
def test_leaving_out_any_wait_spoils_the_result(root, expected, what):
    """Each wait left out, with the streams in the one bad order: the result is wrong, or a stage raises."""
    left_out, eager = LEFT_OUT[what]
    try:
        got = result_of(workflow_of(root), LateGpu(eager, left_out=[left_out]))
    except (PipelineError, IndexError, ValueError, AssertionError):
        return
    assert got["fingerprint"] != expected["fingerprint"]


def test_a_stopped_run_resumes_on_a_gpu_to_the_same_bits(root, tmp_path):
    """Commits read the slab of the GPU; its dense model and optimizer come back."""
    workflow = workflow_of(root, epochs=2)
    driver = driver_of(workflow, tmp_path, LateGpu(seed=1))
    watch = driver.runner.watch

    def stop_after_five(done):
        watch(done)
        if done.trained and done.trained.block.number == 5:
            driver.pauses.stop("SIGTERM")

    driver.runner.watch = stop_after_five
    assert driver.run() is None
    assert 0 < driver.history.trained < 2 * 72
    again = driver_of(workflow, tmp_path, LateGpu(seed=2)).run()
    assert again["fingerprint"] == result_of(workflow)["fingerprint"]


def test_a_non_finite_loss_names_the_same_batch_on_cpu_and_gpu(root):
    workflow = workflow_of(root)
    rows = workflow.optimizer.rows.model_copy(update={"lr": 1e30})
    workflow = workflow.model_copy(update={"optimizer": workflow.optimizer.model_copy(update={"rows": rows})})
    told = []
    for device in (RAM, LateGpu()):
        with pytest.raises(PipelineError, match=r"the loss of batch \d+ of epoch 1 is (nan|inf)") as raised:
            result_of(workflow, device)
        told.append(str(raised.value).split("the loss of ")[1])
    assert told[0] == told[1]


def test_a_block_that_overflows_the_dedup_table_loses_no_key(root, monkeypatch):
    """As if a block of three batches took too little of its buffer: look-ahead and blocks get smaller."""
    workflow = workflow_of(root, look_ahead=1, block_batches=3)
    monkeypatch.setattr(dedup_on_gpu, "limit_of", lambda limit_bytes: limit_bytes >> 10)
    said = []
    with tempfile.TemporaryDirectory() as run_dir:
        driver = driver_of(workflow, run_dir, LateGpu())
        driver.progress.line = said.append
        got = driver.run()
    assert any("more unique keys than the 42 that dedup's table on the GPU has room for" in line for line in said)
    assert got["fingerprint"] == result_of(workflow)["fingerprint"]


@pytest.mark.parametrize("ring_bytes", [10_000, 300_000])
def test_gpu_memory_stays_within_what_was_planned(ring_bytes):
    """All that lives as long as the run, also when a smaller look-ahead divides the read ring again."""
    sizes = sizes_of(make_workflow(Path(".")))
    sizes = replace(sizes, read_ring_bytes=ring_bytes, gpu_bytes=gpu_bytes(ring_bytes, 5))
    planned = sum(num_bytes for _, num_bytes, _ in device_table(sizes, 2))
    device = LateGpu()
    on_gpu = OnGpu(FieldLayout((0, 1), (2,), (True,)), sizes, device)
    slab = Slab(sizes.device_rows, sizes.row_bytes // 4, device=device)
    assert sizes.read_buffer_bytes(5) == ring_bytes // 5
    for buffers in (5, 3, 1):
        on_gpu.start(buffers, sizes.read_buffer_bytes(buffers))
        assert 0.5 * planned < device.allocated <= planned
    slab.close()


def test_a_failure_after_a_stretch_names_the_last_commit(root):
    """There a block is asked after the stages are through, what it came to."""
    workflow = workflow_of(root)
    workflow = workflow.model_copy(update={"commit": workflow.commit.model_copy(update={"every_blocks": 3})})
    with tempfile.TemporaryDirectory() as run_dir:
        driver = driver_of(workflow, run_dir, LateGpu())
        findings = driver.crew.worker.tiers.learner.block_metrics
        found = findings.of

        def bad(block, *args):
            if block.number == 5:
                raise FloatingPointError("the loss is nan")
            return found(block, *args)

        findings.of = bad
        with pytest.raises(PipelineError, match="the loss is nan\ncommit 1 is kept"):
            driver.run()


def test_foresight_on_a_gpu_changes_no_bit(root, expected):
    foresight = {"device_policy": "foresight", "host_policy": "foresight", "known_examples": 30}
    workflow = workflow_of(root, storage=foresight)
    on_cpu, on_gpu = result_of(workflow), result_of(workflow, LateGpu())
    assert on_cpu["fingerprint"] == on_gpu["fingerprint"] == expected["fingerprint"]
    assert on_cpu["tiers"]["disk"]["hits"] == on_gpu["tiers"]["disk"]["hits"] < expected["tiers"]["disk"]["hits"]
