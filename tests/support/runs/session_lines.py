"""Lines of live.jsonl of fictitious sessions, with stages that overlap as the schedule allows."""

import numpy as np

from pipeline.monitor.live.lines import LIVE, Begin, BlockSpans, CommitDone, Ended, Evaluated, Fields, Said, Tick
from pipeline.schedule import edges

STAGES_HERE = ("read", "dedup", "plan", "prefetch", "train", "write_back")
BEGAN = 1_750_000_000.25


def begin(at=BEGAN, examples=0, **changes):
    values = {
        "name": "small", "fields": ("item", "country"), "labels": ("click",), "total": 10_000, "epochs": 2,
        "batch_size": 10, "workers": 1, "threads": 1, "device": "cpu", "row_bytes": 100, "device_rows": 500,
        "host_rows": 900, "disk_cap_bytes": 1 << 30, "versions": {"python": "3.11"},
    }  # fmt: skip
    return Begin(at=at, examples=examples, **values | changes)


def tick(seconds, trained, at=BEGAN, **changes):
    """The state `seconds` after the start of a session at time `at`."""
    moves = {
        "keys": 10 * trained, "device_hits": 6 * trained, "host_hits": 2 * trained, "disk_hits": trained,
        "new": trained, "device_to_host": trained, "device_to_disk": 0, "host_to_disk": trained, "unchanged": 0,
        "padding": 0,
    }  # fmt: skip
    values = {
        "at": at + seconds, "seconds": seconds, "examples": trained, "trained": trained, "epoch": 0, "split": "train",
        "block": trained // 20, "block_batches": 2, "look_ahead": 1, "loss": 0.7 - trained / 1e6, "lr_rows": 0.01,
        "lr_dense": 0.001, "ready": 1, "stages": {"train": seconds / 2, "read": seconds / 4},
        "waits": {"train": seconds / 2, "read": seconds / 4, "disk": seconds / 8}, "moves": moves, "device_rows": 400,
        "host_rows": 800, "disk_bytes": 5000, "free_bytes": 1 << 40, "rss_bytes": 1 << 28, "observer_seconds": 0.01,
    }  # fmt: skip
    return Tick(**values | changes)


def spans(rng, num_blocks, look_ahead=1, start=0.0):
    """Spans of consecutive blocks: each stage follows those that it must wait for, and takes a random time."""
    stops, blocks = {}, {}
    for i in range(num_blocks + 2 * look_ahead + 1):
        for stage in STAGES_HERE:
            _place(rng, stage, i, look_ahead, start, stops, blocks)
    return tuple(
        BlockSpans(number=i, split="train", spans=tuple(blocks[i, stage] for stage in STAGES_HERE))
        for i in range(num_blocks)
    )


def _place(rng, stage, i, look_ahead, start, stops, blocks):
    if (stage, i) in stops or i < 0:
        return
    before = []
    for other, block in edges(stage, i, look_ahead):
        # Replace each omitted stage by the one that it would wait for.
        other = {"upload": "prefetch", "unite": "dedup"}.get(other, other)
        if other in STAGES_HERE and block >= 0:
            _place(rng, other, block, look_ahead, start, stops, blocks)
            before.append((stops[other, block], other))
    done, after = max(before, default=(start, ""))
    begun = done + rng.choice([0.0, 1e-7, 1e-4])
    stops[stage, i] = begun + rng.choice([2e-7, 1e-3, 1e-2])
    blocks[stage, i] = blocks[i, stage] = (stage, begun, stops[stage, i], after, done if after else 0.0)


def evaluated(seconds, trained, split="validation", epoch=1, at=BEGAN, **metrics):
    found = metrics or {"auc": 0.75, "logloss": 0.4, "gauc": None}
    return Evaluated(at=at + seconds, epoch=epoch, split=split, seconds=seconds, trained=trained, metrics=found)


def commit(seconds, number, at=BEGAN, name=None):
    return CommitDone(
        at=at + seconds + 0.25, number=number, name=name, seconds=seconds, took=0.25, live_rows=100 * number,
        log_bytes=10_000 * number, written_bytes=15_000 * number,
    )  # fmt: skip


def ended(seconds, at=BEGAN, how="finished", text="The disk bound it."):
    waits = {"train": seconds / 2, "read": seconds / 4, "unattributed": seconds / 4}
    return Ended(at=at + seconds, how=how, seconds=seconds, waits=waits, parts={"disk": 1.0}, text=text)


def said(seconds, text, at=BEGAN):
    return Said(at=at + seconds, text=text)


def fields(seconds, block, at=BEGAN):
    return Fields(at=at + seconds, block=block, values=(9, 5), keys=(4, 3), host=(1, 0), disk=(1, 1), new=(0, 1))


def two_sessions(seed=0):
    """A session killed some time after a commit, and the session that resumed from the commit and ended."""
    rng = np.random.default_rng(seed)
    later = BEGAN + 86_400
    return [
        begin(),
        said(0.1, "commit every 2 blocks"),
        tick(1.0, 200, blocks=spans(rng, 3)),
        fields(1.5, 8),
        tick(2.0, 500, blocks=spans(rng, 2, start=1.2)),
        evaluated(2.6, 500),
        commit(2.7, 1),
        tick(3.5, 800, loss=None),
        begin(later, examples=600),
        tick(1.0, 700, later),
        tick(2.0, 1000, later, blocks=spans(rng, 3, start=1.1)),
        evaluated(2.6, 1000, epoch=2, at=later, auc=0.76, logloss=0.39),
        commit(2.7, 2, later, "best"),
        evaluated(3.6, 1000, "test", 2, later, auc=0.74, logloss=0.41),
        ended(4.0, later),
    ]


def append(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LIVE).open("a") as file:
        file.writelines(f"{line.model_dump_json()}\n" for line in lines)


def write_run(folder, lines, result=None):
    """Write a folder as a run leaves it, as far as readers of live.jsonl are concerned."""
    (folder / "commits").mkdir(parents=True)
    append(folder, lines)
    return folder
