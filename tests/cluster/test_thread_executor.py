"""The executor of threads: a stage runs after those that it waits for, and none runs after one that failed."""

from threading import Event

import pytest
from support.depth import some
from support.oracle.reference import Reference
from support.runs.harness import run

from pipeline.cluster.local_crew import THREADS
from pipeline.cluster.threads import ThreadExecutor
from pipeline.records import StageResult


def test_a_stage_runs_on_its_own_thread_after_what_it_waits_for():
    read, order = Event(), []

    def call(stage, number):
        if stage == "train":
            assert read.wait(10)
        else:
            read.set()
        order.append(stage)
        return StageResult(stage, number)

    executor = ThreadExecutor(call)
    train = executor.submit("train", 0, [])
    write_back = executor.submit("write_back", 0, [train])
    executor.submit("read", 1, [])
    assert executor.result(write_back) == StageResult("write_back", 0)
    executor.close()
    assert order == ["read", "train", "write_back"]


def test_no_stage_runs_after_one_that_failed():
    called = []

    def call(stage, number):
        called.append(stage)
        raise OSError("the disk is gone")

    executor = ThreadExecutor(call)
    futures = [executor.submit("read", 0, [])]
    futures += [executor.submit("dedup", 0, futures), executor.submit("read", 1, futures)]
    executor.settle(futures)
    with pytest.raises(OSError, match="the disk is gone"):
        executor.result(futures[1])
    executor.close()
    assert called == ["read"]


@pytest.mark.parametrize(("look_ahead", "block_batches"), some([(1, 1), (4, 3)], (4, 3), several=True))
def test_threads_train_the_bits_of_the_plain_trainer(small_workflow, look_ahead, block_batches):
    workflow = small_workflow(block_batches=block_batches, look_ahead=look_ahead)
    result = run(workflow, THREADS, device_rows=130, host_rows=24, chunk_rows=4)
    assert result["tiers"]["disk"]["rows_in"] > 100
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
