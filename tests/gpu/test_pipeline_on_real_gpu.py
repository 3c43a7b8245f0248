"""The pipeline on CUDA: overlapped equals serial bit for bit, and the CPU's run to a stated tolerance."""

import math

import pytest
from conftest import make_workflow, write_data
from support.gpu import on_gpu
from support.runs.harness import make_driver, run

from pipeline.cluster.local import local_client
from pipeline.preflight.sizes import DoesNotFit

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(bool(on_gpu.reason()), reason=on_gpu.reason() or "there is a GPU")]

TIERS = {"device_rows": 400, "host_rows": 60, "chunk_rows": 16, "ring_rows": 600}
LOSS_TOLERANCE = 1e-3
"""Of logloss, and five times it of AUC, after two small epochs: cuBLAS adds in another order than the CPU's library,
and Adam's first steps turn a difference of one rounding in a small gradient into one of a step."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("gpu"), num_train=600, num_keys=120)


def workflow_of(root, device="cuda", **changes):
    settings = {"batch_size": 32, "block_batches": 2, "args": {"hidden": (32, 32)}} | changes
    return make_workflow(root, **settings).model_copy(update={"device": device})


@pytest.fixture(scope="module")
def serial(root):
    return run(workflow_of(root), **TIERS)


@pytest.mark.parametrize("look_ahead", [1, 2, 4])
@pytest.mark.parametrize("block_batches", [1, 2, 5])
def test_overlap_and_block_sizes_never_change_the_result(root, serial, look_ahead, block_batches):
    with local_client() as client:
        got = run(workflow_of(root, look_ahead=look_ahead, block_batches=block_batches), client, **TIERS)
    assert got["fingerprint"] == serial["fingerprint"]
    assert got["epochs"] == serial["epochs"]


def test_tier_sizes_never_change_the_result(root, serial):
    assert serial["tiers"]["disk"]["rows_in"] > 100
    everything_on_the_gpu = run(workflow_of(root))
    assert everything_on_the_gpu["fingerprint"] == serial["fingerprint"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gpu_trains_to_the_metrics_of_the_cpu_within_tolerance(root, precision):
    results = []
    for device in ("cpu", "cuda"):
        workflow = workflow_of(root, device)
        model = workflow.model.model_copy(update={"precision": precision})
        results.append(run(workflow.model_copy(update={"model": model}), **TIERS)["epochs"])
    tolerance = LOSS_TOLERANCE if precision == "float32" else 30 * LOSS_TOLERANCE
    for on_cpu, on_cuda in zip(*results, strict=True):
        assert math.isclose(on_cpu["logloss"], on_cuda["logloss"], abs_tol=tolerance)
        assert math.isclose(on_cpu["auc"], on_cuda["auc"], abs_tol=5 * tolerance)


def test_seconds_of_gpu_stages_are_reported(root):
    result = run(workflow_of(root), **TIERS)
    assert {"gpu dedup", "gpu upload", "gpu train", "gpu copy back"} <= set(result["stages"])
    assert result["stages"]["gpu train"] > 0


def test_too_little_gpu_memory_is_refused_with_the_plan(root, tmp_path):
    with pytest.raises(DoesNotFit, match=r"out of memory [\s\S]*device slab"):
        make_driver(workflow_of(root), tmp_path, device_rows=1 << 31)
