"""Runs and their replays, to be compared."""

from harness import make_driver, sizes_of
from machine import Unsynced

from pipeline.data.agenda import Agenda
from pipeline.replay.capacities import Capacities
from pipeline.replay.engine import simulate
from pipeline.replay.trace import FileTrace, shards_of
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.files import Files


def with_settings(workflow, policies=("clock", "clock"), **commit):
    """The workflow with these policies, and these settings of commits; by default none is taken by time."""
    device_policy, host_policy = policies
    storage = workflow.storage.model_copy(update={"device_policy": device_policy, "host_policy": host_policy})
    commit = workflow.commit.model_copy(update={"every_minutes": None} | commit)
    return workflow.model_copy(update={"storage": storage, "commit": commit})


def trace_of(workflow, world=1, num_shards=1):
    """Trace of the workflow's files, and its reader, which must be closed."""
    reader, schedule = KeyReader(workflow.data, workflow.seed), workflow.schedule
    agenda = Agenda(reader.source.num_examples, schedule.batch_size, schedule.epochs)
    return FileTrace(reader, agenda, shards_of(num_shards, world)), reader


def simulated(workflow, world=1, num_shards=1, **sizes):
    """Totals of the simulated run of a workflow with these sizes (see harness.sizes_of)."""
    trace, reader = trace_of(workflow, world, num_shards)
    storage, schedule, commit = workflow.storage, workflow.schedule, workflow.commit
    totals = simulate(
        trace, Capacities.of(sizes_of(workflow, **sizes), storage), (storage.device_policy, storage.host_policy),
        schedule.look_ahead, schedule.block_batches, commit.every_blocks, commit.keep,
    )  # fmt: skip
    reader.close()
    return totals


def trained(workflow, run_dir, **sizes):
    """The driver of a run that has ended, its workers closed, and the refusal that ended it. Nothing waits for the
    disk."""
    files = Files()
    files.system = Unsynced()
    driver = make_driver(workflow, run_dir, files=files, **sizes)
    driver._begin()
    with driver.progress:
        refusal = driver._train()
    driver.crew.close()
    driver._source.close()
    return driver, refusal


def counts_of_commits(disk):
    return disk.commits, disk.rows_changed, disk.rows_merged
