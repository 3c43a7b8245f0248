"""Two workers on late GPUs: every result is that of two workers on CPUs, bit for bit.

All runs here but NCCL: the groups of what lies in the memory of GPUs are gloo's, used as work of a stream.
"""

import threading

import pytest
from conftest import NARROW, make_workflow, write_data
from support.depth import some
from support.gpu.grids import small_grids  # noqa: F401
from support.gpu.late_gpu import LateGpu
from support.gpu.late_gpus import LateGpus
from support.oracle.worker_cases import RULES
from support.runs.crew_threads import crew_driver

from pipeline.driver.loop import DueCommit
from pipeline.errors import PipelineError
from pipeline.kernels import launch, segment_sum
from pipeline.settings.optimizer import Adam, DenseAdam, KStep, Optimizer
from pipeline.workflow import Metrics

THREE_TIERS = {"device_rows": 60, "host_rows": 6, "chunk_rows": 4, "ring_rows": 200}
LARGE = {"device_rows": 400, "host_rows": 400}


@pytest.fixture(autouse=True, scope="module")
def one_kernel_at_a_time():
    """The simulator keeps the grid of a kernel in the kernel, and its threads' numbers in the kernel's module."""
    lock, launch_blocks = threading.Lock(), launch.launch_blocks

    def alone(*args):
        with lock:
            launch_blocks(*args)

    with pytest.MonkeyPatch.context() as patch:
        for module in (launch, segment_sum):
            patch.setattr(module, "launch_blocks", alone)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("gpus"), num_train=48, num_keys=80)


def workflow_of(root, **changes):
    storage = {"read": "128 KiB"}
    workflow = make_workflow(root, storage=storage, **({"block_batches": 2, "epochs": 1, "batch_size": 7} | changes))
    return workflow.model_copy(update={"metrics": Metrics(group="user", progressive=True)})


def late(seeds=(None, None), **kwargs):
    return LateGpus([LateGpu(seed=seed, **kwargs) for seed in seeds])


def result_of(workflow, run_dir, gpus=None, **sizes):
    with crew_driver(workflow, run_dir, 2, gpus=gpus, **(THREE_TIERS | sizes)) as driver:
        return driver.run()


@pytest.fixture(scope="module")
def expected(root, tmp_path_factory):
    return result_of(workflow_of(root), tmp_path_factory.mktemp("expected"))


ORDERS = {
    "late": {}, "at random": {"seeds": (1, None)}, "train runs ahead": {"eager": ("train",)},
    "upload runs ahead": {"eager": ("up", "down")},
}  # fmt: skip


@pytest.mark.parametrize("order", some(ORDERS, "late", "at random"))
@pytest.mark.parametrize("look_ahead", some([1, 2], 2))
def test_two_gpus_give_the_same_bits_as_two_cpus(root, tmp_path, expected, order, look_ahead):
    got = result_of(workflow_of(root, look_ahead=look_ahead), tmp_path, late(**ORDERS[order]))
    assert got["fingerprint"] == expected["fingerprint"]
    assert got["epochs"] == expected["epochs"]
    assert got["tiers"]["disk"]["rows_in"] > 10, "nothing came from the disk"


def test_tier_sizes_never_change_what_two_gpus_train(root, tmp_path, expected):
    got = result_of(workflow_of(root, block_batches=3), tmp_path, late(), **LARGE)
    assert got["fingerprint"] == expected["fingerprint"]
    assert got["tiers"]["disk"]["rows_in"] == 0


OPTIMIZERS = {name: RULES[name] for name in ("dense CowClip", "clipped norm", "rowwise_adagrad")} | {
    "k-step": Optimizer(rows=Adam(lr=0.05), dense=DenseAdam(lr=0.01, eps=1e-4), merge=KStep(k=3, start=2, merged="xmv"))
}


@pytest.mark.parametrize("name", some(OPTIMIZERS, "dense CowClip"))
def test_two_gpus_match_two_cpus_with_each_optimizer(root, tmp_path, name):
    workflow = workflow_of(root, weight="importance").model_copy(update={"optimizer": OPTIMIZERS[name]})
    on_cpus, on_gpus = (
        result_of(workflow, tmp_path / where, gpus) for where, gpus in (("cpus", None), ("gpus", late((1, None))))
    )
    assert on_gpus["fingerprint"] == on_cpus["fingerprint"]
    assert on_gpus["epochs"] == on_cpus["epochs"]


def test_narrow_fields_give_two_gpus_the_bits_of_two_cpus(root, tmp_path):
    workflow = workflow_of(root, categories=NARROW)
    results = [result_of(workflow, tmp_path / where, gpus) for where, gpus in (("cpus", None), ("gpus", late()))]
    assert results[0]["fingerprint"] == results[1]["fingerprint"]


def test_two_gpus_resume_from_a_commit_to_the_same_bits(root, tmp_path, expected):
    for epochs in (None, 1):
        with crew_driver(workflow_of(root), tmp_path, 2, gpus=late((2, 1)), **THREE_TIERS) as driver:
            if epochs:
                assert driver.run()["fingerprint"] == expected["fingerprint"]
            else:
                blocks = list(driver.agenda.blocks(2))
                told = []
                driver.crew.run(blocks[:3], 2, told.append)
                for done in told:
                    driver.history.add(done)
                driver.commit(DueCommit(blocks[3]))
    assert [done.trained.block.number for done in told if done.trained] == [0, 1, 2]


@pytest.mark.parametrize("look_ahead", some([1, 2], 2))
def test_a_block_that_one_of_two_gpus_refuses_is_reported_once(root, tmp_path, expected, look_ahead):
    """The other has planned it and blocks after it, whose rows it moves: what it was through with is reported once."""
    told, refused = [], []
    with crew_driver(workflow_of(root, look_ahead=look_ahead), tmp_path, 2, gpus=late(), **THREE_TIERS) as driver:
        crew, watch = driver.crew, driver.runner.watch

        def pause_one(rank, stage, number):
            if stage == "plan" and number == 3 and not refused:
                refused.append(number)
                crew.workers[rank].pause("here alone")

        def watched(done):
            told.extend([done.trained.block.number] if done.trained else [])
            watch(done)

        crew.before, driver.runner.watch = pause_one, watched
        result = driver.run()
    assert refused
    assert told == sorted(set(told))
    assert result["fingerprint"] == expected["fingerprint"]
    assert result["epochs"] == expected["epochs"]


LEFT_OUT = {
    "train does not wait for what upload brings": (("train", "up"), ("train",), 1),
    "a block is uploaded into the buffer of one that trains": (("up", "train"), ("up",), 0),
    "another block is read before upload has copied this one": (("host", "up"), (), 1),
    "a commit does not wait for the rows": (("host", "train"), (), 1),
}


@pytest.mark.prove
@pytest.mark.parametrize(("eager", "look_ahead"), sorted({tuple(order) for _, *order in LEFT_OUT.values()}))
def test_with_all_waits_any_order_of_two_gpus_is_the_same(root, tmp_path, expected, eager, look_ahead):
    """The wait that is left out below is what spoils a result. One order has no look-ahead."""
    gpus = late(eager=eager)
    with crew_driver(workflow_of(root, block_batches=1), tmp_path, 2, gpus=gpus, **THREE_TIERS) as driver:
        driver.runner.pace.look_ahead = look_ahead
        assert driver.run()["fingerprint"] == expected["fingerprint"]


@pytest.mark.parametrize("what", LEFT_OUT)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_leaving_out_any_wait_of_two_gpus_spoils_the_result(root, tmp_path, expected, what):
    left_out, eager, look_ahead = LEFT_OUT[what]
    gpus = late(eager=eager, left_out=[left_out])
    with crew_driver(workflow_of(root, block_batches=1), tmp_path, 2, gpus=gpus, **THREE_TIERS) as driver:
        driver.runner.pace.look_ahead = look_ahead
        try:
            got = driver.run()
        except (PipelineError, IndexError, ValueError, AssertionError):
            return
        assert got["fingerprint"] != expected["fingerprint"]
