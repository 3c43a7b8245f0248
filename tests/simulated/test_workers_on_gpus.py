"""Two workers on late GPUs: every result is that of two workers on CPUs, bit for bit.

All runs here but NCCL: the groups of what lies in the memory of GPUs are gloo's, used as work of a stream.
"""

import threading

import numpy as np
import pytest
from conftest import make_workflow, write_data
from crew_threads import crew_driver
from grids import small_grids  # noqa: F401
from late_gpu import LateGpu
from late_gpus import LateGpus
from many_rules import RULES

from pipeline.failures import PipelineError
from pipeline.kernels import launch, segment_sum
from pipeline.optimizer import Adam, DenseAdam, KStep, Optimizer
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
    "late": {}, "seed 1": {"seeds": (1, 2)}, "seed 2": {"seeds": (3, None)},
    "train runs ahead": {"eager": ("train",)}, "upload runs ahead": {"eager": ("up", "down")},
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("look_ahead", [1, 2])
def test_two_gpus_give_other_bits_than_two_cpus(root, tmp_path, expected, order, look_ahead):
    got = result_of(workflow_of(root, look_ahead=look_ahead), tmp_path, late(**ORDERS[order]))
    assert got["fingerprint"] == expected["fingerprint"]
    assert got["epochs"] == expected["epochs"]
    assert got["tiers"]["disk"]["rows_in"] > 10, "nothing came from the disk"
