"""Lines of live.jsonl as a run of any length would write them."""

import math
from dataclasses import dataclass, field

from pipeline.monitor.live.lines import CAUSES, LIVE, Begin, CommitDone, Ended, Evaluated, Said, Tick
from pipeline.stages import STAGES


def moved(at):
    """Counts of moves after `at` seconds: a cold start, then an increasing share of hits."""
    keys = 60_000 * at
    warm = 1 - math.exp(-at / 20)
    new = 400_000 * warm
    disk = 0.04 * keys * warm
    host = 0.08 * keys * warm
    counts = {
        "keys": keys, "device_hits": max(keys - new - disk - host, 0), "host_hits": host, "disk_hits": disk, "new": new,
        "device_to_host": host + 0.3 * new, "device_to_disk": 0.3 * disk, "host_to_disk": 0.7 * disk + 0.1 * new,
        "unchanged": 0.2 * disk, "padding": 0,
    }  # fmt: skip
    return {name: int(value) for name, value in counts.items()}


@dataclass
class FakeRun:
    """A run that writes lines. `seconds`: duration of each of its `sessions`."""

    epochs: int = 2
    workers: int = 1
    labels: tuple[str, ...] = ("click",)
    evaluates: bool = True
    step: float = 1.0
    rate: int = 40_000
    per_epoch: int = 1_000_000
    now: float = 1_760_000_000.0
    lines: list = field(default_factory=list)
    done: int = 0
    trained_for: float = 0.0
    commits: int = 0
    log_bytes: int = 1 << 20
    session: float = 0.0
    waits: dict = field(default_factory=dict)
    stages: dict = field(default_factory=dict)
    epoch: int = 0

    @property
    def total(self):
        return self.epochs * self.per_epoch

    def add(self, line):
        self.lines.append(line)
        return self

    def begin(self, back=0.0):
        """Begin a session. `back`: share of the examples lost because the last commit did not contain them."""
        self.done = int(self.done * (1 - back))
        self.session, self.waits, self.stages = 0.0, dict.fromkeys(("train", *CAUSES), 0.0), {}
        return self.add(
            Begin(
                at=self.now, name="quickstart", examples=self.done, total=self.total, epochs=self.epochs,
                batch_size=4096, workers=self.workers, device="cpu", row_bytes=112, disk_cap_bytes=2 << 30,
                versions={"pipeline": "0.1.0", "torch": "2.9.0", "numpy": "2.3.0"},
            )
        )  # fmt: skip

    def train(self, until=1.0):
        """Train until this share of the run is done."""
        while self.done < until * self.total:
            self.tick()
            ended = min(self.done // self.per_epoch, self.epochs)
            while self.epoch < ended:
                self.epoch += 1
                if self.evaluates:
                    self.evaluate("validation")
                self.commit("best")
        return self

    def tick(self):
        """Train for one clock step."""
        rate = self.rate * (1 + 0.12 * math.sin(self.trained_for) + 0.05 * math.sin(7.3 * self.trained_for))
        self.now, self.session = self.now + self.step, self.session + self.step
        self.trained_for += self.step
        warm = 1 - math.exp(-self.trained_for / 15)
        self.done = min(self.done + int(rate * self.step), self.total)
        self.log_bytes += int(1.2e6 * self.step)
        of = {"disk": 0.2 * warm, "host copy": 0.05, "plan": 0.03, "hand-over": 0.015, "read": 0.06 * (1 - warm)}
        of["other workers"] = 0.06 if self.workers > 1 else 0.0
        of["compile"] = 0.5 if self.session < 2 else 0.0
        of["train"] = 1 - sum(of.values())
        for cause, share in of.items():
            self.waits[cause] += share * self.step
        for stage, share in zip(STAGES, (0.3, 0.2, 0.05 * (self.workers > 1), 0, 0.1, 0.5, 0, 0.69, 0.2), strict=True):
            self.stages[stage] = self.stages.get(stage, 0.0) + share * self.step
        share = self.done / self.total
        loss = 0.455 + 0.2 * math.exp(-12 * share) + 0.006 * math.sin(11 * self.trained_for)
        self.add(
            Tick(
                at=self.now, seconds=self.session, examples=self.done, trained=self.done,
                epoch=min(self.done // self.per_epoch, self.epochs - 1), split="train", loss=loss, lr_rows=4e-3,
                lr_dense=1e-3, stages=dict(self.stages), waits=dict(self.waits), moves=moved(self.trained_for),
                disk_bytes=self.log_bytes, free_bytes=60 << 30, rss_bytes=800 << 20,
                observer_seconds=0.001 * self.trained_for,
            )
        )  # fmt: skip
        if int(self.session / self.step) % 12 == 0:
            self.commit(None)

    def evaluate(self, split):
        self.now += 1.5
        self.session += 1.5
        self.waits["evaluation"] += 1.5
        better = 1 - math.exp(-self.epoch / max(1, self.epochs) * 4)
        metrics = {"auc": 0.74 + 0.05 * better, "logloss": 0.49 - 0.04 * better, "ne": 0.88 - 0.07 * better}
        metrics |= {"calibration": 1.01, "gauc": None}
        if len(self.labels) > 1:
            metrics |= {f"{name}_{label}": value for label in self.labels for name, value in metrics.items()}
        return self.add(
            Evaluated(
                at=self.now, epoch=max(1, self.epoch), split=split, seconds=1.5, trained=self.done, metrics=metrics
            )
        )  # fmt: skip

    def commit(self, name):
        self.commits += 1
        self.waits["commit"] += 0.2
        return self.add(
            CommitDone(
                at=self.now, number=self.commits, name=name, seconds=self.session,
                took=0.2 + 0.05 * (self.commits % 3), live_rows=min(214_000, 20_000 * self.commits),
                log_bytes=self.log_bytes, written_bytes=2 * self.log_bytes,
            )
        )  # fmt: skip

    def say(self, text):
        return self.add(Said(at=self.now, text=text))

    def end(self, how="finished", text="training waited 28% of the time: 20% for rows from and to disk"):
        waits = dict(self.waits)
        return self.add(Ended(at=self.now, how=how, seconds=self.session, waits=waits, parts={}, text=text))

    def write(self, folder, upto=None):
        """Write the lines, or the first of them, to a run directory."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LIVE).open("a") as file:
            file.writelines(f"{line.model_dump_json()}\n" for line in self.lines[:upto])
        return folder


def quickstart(**changes):
    """A finished run that took a minute."""
    run = FakeRun(**changes).say("dashboard: http://127.0.0.1:41234/status").begin().train().evaluate("test")
    return run.commit(None).end()


def resumed(**changes):
    """A run that was killed halfway and resumed, and has not ended."""
    return FakeRun(**changes).begin().train(0.4).begin(back=0.1).train(0.8)
