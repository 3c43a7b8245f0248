"""Runs and their replays, for comparison."""

from support.oracle.data_path import Unsynced
from support.runs.crew_threads import NUM_SHARDS, ONE, make_crew_driver
from support.runs.harness import make_driver, sizes_of

from pipeline.data.agenda import Agenda
from pipeline.driver.observers import Observer
from pipeline.driver.stretches import STRETCHES, read_events
from pipeline.kernels.key_table import ENTRIES_PER_KEY_OF_A_BLOCK, KeyTable
from pipeline.replay.capacities import Capacities
from pipeline.replay.engine import Simulation
from pipeline.replay.record import RecordedRun
from pipeline.replay.trace import Divide, FileTrace, Recent, first_appearances, shards_of
from pipeline.stages.unique_keys import KeyReader
from pipeline.storage.files import Files
from pipeline.storage.shards import ONE_SHARD, Shards


def with_settings(workflow, policies=("clock", "clock"), **commit):
    """The workflow with these policies and commit settings; by default, without commits by time."""
    commit = {"every_minutes": None} | commit
    return workflow.with_settings(
        {
            "storage.device_policy": policies[0],
            "storage.host_policy": policies[1],
            **{f"commit.{name}": value for name, value in commit.items()},
        }
    )


def trace_of(workflow, world=1, num_shards=1):
    """Trace of the workflow's files, and its reader, which must be closed."""
    reader, schedule = KeyReader(workflow.data, workflow.seed), workflow.schedule
    agenda = Agenda(reader.source.num_examples, schedule.batch_size, schedule.epochs)
    return FileTrace(reader, agenda, shards_of(num_shards, world)), reader


class BatchTrace:
    """Trace of batches given as arrays, the same in every epoch; each batch counts as one example."""

    def __init__(self, splits, epochs=1, shards=(ONE_SHARD,)):
        """`splits`: keys of each batch of "train", "validation" and "test"; a key may occur more than once."""
        self.agenda, self.shards = Agenda({split: len(batches) for split, batches in splits.items()}, 1, epochs), shards
        self._splits, self._divide, self._table = splits, Divide(shards), KeyTable(ENTRIES_PER_KEY_OF_A_BLOCK)
        self.keys = Recent(self._keys)

    def _keys(self, block):
        batches = self._splits[block.split][block.first_batch : block.first_batch + block.num_batches]
        return self._divide(first_appearances(batches, self._table))


def simulate(trace, capacities, policies, *pace, **more):
    """Totals of a run simulated to its end. Arguments are as for `Simulation`."""
    simulation = Simulation(trace, capacities, policies, *pace, **more)
    for _ in simulation.steps():
        pass
    return simulation.totals


def simulated(workflow, world=1, num_shards=NUM_SHARDS, **sizes):
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
    """Train a run to its end. Returns its driver, with the workers closed, and the refusal that ended the run, if
    any."""
    driver = opened(workflow, run_dir, **sizes)
    return driver, to_the_end(driver)


def opened(workflow, run_dir, world=ONE, **sizes):
    """Driver of a session in which nothing waits for the disk."""
    files = Files()
    files.system = Unsynced()
    if world == ONE:
        return make_driver(workflow, run_dir, files=files, shards=Shards.all(NUM_SHARDS), **sizes)
    driver = make_crew_driver(workflow, run_dir, world, **sizes)
    for one in (driver.folder.files, *(worker._files for worker in driver.crew.workers)):
        one.system = files.system
    return driver


def to_the_end(driver):
    """Train the rest of the run, and close the workers. Returns the refusal that ended the run, if any."""
    driver.begin()
    try:
        with driver.progress:
            return driver.train()
    finally:
        driver.crew.close()
        driver._source.close()


class Killed(Exception):
    pass


class Stop(Observer):
    """Ends a session after `blocks` trained blocks: by a signal, or by a simulated kill."""

    def __init__(self, driver, blocks, kills):
        self._driver, self._left, self._kills = driver, blocks, kills

    def on_stage(self, done):
        self._left -= done.trained is not None
        if not self._left and self._kills:
            raise Killed
        if not self._left:
            self._driver.pauses.stop("SIGINT")


def replayed(workflow, run_dir):
    """Totals of the replay of a run from its record."""
    reader, schedule = KeyReader(workflow.data, workflow.seed), workflow.schedule

    def trace_of(opened):
        assert opened.examples == reader.source.num_examples
        agenda = Agenda(opened.examples, schedule.batch_size, opened.epochs, opened.test_apart)
        return FileTrace(reader, agenda, [Shards(worker.num_shards, worker.shards) for worker in opened.workers])

    run = RecordedRun(trace_of)
    run.follow(read_events(run_dir / STRETCHES))
    reader.close()
    return run.totals


def counts_of_commits(disk):
    return disk.commits, disk.rows_changed, disk.rows_merged
