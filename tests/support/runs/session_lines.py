"""Lines of live.jsonl of fictitious sessions."""

from pipeline.monitor.live.lines import LIVE, Begin, Said, Tick

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


def said(seconds, text, at=BEGAN):
    return Said(at=at + seconds, text=text)


def append(folder, lines):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LIVE).open("a") as file:
        file.writelines(f"{line.model_dump_json()}\n" for line in lines)
