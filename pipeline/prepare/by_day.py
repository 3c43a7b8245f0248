"""`prepare sequences --into DIR`: histories day by day, each from the last events of users that the days before left.

DIR/DAY/part-*.parquet     the examples of a day with their histories
DIR/_days.json             the days: sources, numbers, and the segments that hold the last events after each
DIR/_state/ID.arrow        a segment: events sorted by the key of their user
DIR/_made/ID               a day's output until its files have their names

A user's last events are those of the newest segment that has any. A day reads only the events of users that it has, and
writes one segment with what their last events are then, so the work does not grow with the number of users. A segment
takes in the one before it, unless that has twice as many events; so there are few. One rename of _days.json commits a
day's output and its segment; the output's files get their names then, or when the next command starts.
"""

from __future__ import annotations

import re
import shutil
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import refuse_remote
from pipeline.files.find import DataFile
from pipeline.machine.aside import move_aside
from pipeline.machine.threads import TaskThreads
from pipeline.prepare.command import NOT_OF_OUTPUT, check_options, plan_preparation, sources_of
from pipeline.prepare.manifest import Origin, command_of
from pipeline.prepare.run import begin, run
from pipeline.prepare.sequences import user_keys
from pipeline.prepare.steps import Job
from pipeline.prepare.values import keys_of
from pipeline.records import U64
from pipeline.settings import Count, Strict
from pipeline.storage.durable import read_sealed, replacing, write_sealed
from pipeline.storage.files import Files, checksum
from pipeline.storage.lock import RunLock

DAYS, STATE, MADE, KEY = "_days.json", "_state", "_made", "key"
NAME = re.compile(r"[^._/][^/]*")
KEEP_DAYS = 3
NOT_WITH = ("split", "least", "no_label", "examples_time")
GROWS = 2
"""A segment is left as it is if it has at least this many times the events of the newer one."""


class Day(Strict):
    """A day that was made."""

    name: str
    place: str
    sources: list[Origin]
    id: str
    """Checksum of the sources and of the `id` of the day before."""
    segments: list[str]
    """Segments with the last events after this day, the newest first."""
    events: Count
    late: Count
    """Number of events before the latest one of the days before."""
    latest: int
    """Key of the user of the latest event so far."""


class Days(Strict):
    """Content of _days.json."""

    options: dict[str, object]
    days: list[Day]


def prepare_days(args: Namespace, started: Callable[[Job], None], asked: threading.Event) -> int:
    """Make the days that are new, that changed, or that follow one that changed. `started`: called with each job;
    `asked`: set to end. Returns the exit code. Raises ValueError if the arguments conflict with the days there are."""
    refuse_remote("--into", args.into)
    check_options(args)
    places = args.sources or args.examples
    if unfit := [name for name in NOT_WITH if getattr(args, name)]:
        raise ValueError(f"--{unfit[0].replace('_', '-')} does not apply to --into; leave it out")
    if (args.sources and args.examples) or not places:
        raise ValueError("--into: name the days, which are examples and events, once, after --examples")
    keep = KEEP_DAYS if args.keep_days is None else args.keep_days
    given = {_name_of(place): str(Path(place).absolute()) for place in places}
    with RunLock(args.into):
        if args.fresh and args.into.exists() and any(args.into.iterdir()):
            print(move_aside(args.into))
        for folder in (args.into, args.into / STATE, args.into / MADE):
            Files().make_folder(folder)
        there = _read(args)
        _publish(args.into, there)
        before = None
        for number, name in enumerate(dict.fromkeys([*(day.name for day in there.days), *given])):
            known = there.days[number] if number < len(there.days) else None
            day = _Making(args, name, given[name] if known is None else given.get(name, known.place), before)
            if known and known.id == day.id_of(known.sources if name not in given else day.sources):
                before = known
                continue
            if number < len(there.days) - keep:
                raise ValueError(f"{day.place}: the state before it is not kept (--keep-days {keep})")
            if not known and (args.into / name).exists():
                raise ValueError(f"{args.into / name} is in the way; move it")
            if (before := day.make(started, asked)) is None:
                return 1
            there.days[number : number + 1] = [before]
            write_sealed(args.into / DAYS, there)
            _publish(args.into, there)
            print(f"{args.into / name}: {before.events:,} events, {before.late:,} of them late")
        kept = {name for day in there.days[-keep - 1 :] for name in day.segments}
        for path in (args.into / STATE).glob("*.arrow"):
            if path.stem not in kept:
                Files().remove(path)
    return 0


def _name_of(place: str) -> str:
    path = Path(place)
    name = path.name if path.is_dir() else path.stem
    if not NAME.fullmatch(name) or not path.exists():
        raise ValueError(f"{place}: name each day as one file or folder, whose name is that of the day")
    return name


def _read(args: Namespace) -> Days:
    """The days there are. Raises ValueError if they were made with other options."""
    others = (*NOT_OF_OUTPUT, "piece_size", "format")
    options = {name: value for name, value in sorted(vars(args).items()) if name not in others}
    if not (args.into / DAYS).exists():
        return Days(options=options, days=[])
    there = read_sealed(args.into / DAYS, Days)
    if differ := [name for name in options if there.options.get(name) != options[name]]:
        raise ValueError(
            f"{args.into} was made with another --{differ[0].replace('_', '-')} ({there.options.get(differ[0])}); "
            "--fresh moves it aside"
        )
    return there


class _Making:
    """A day that may have to be made."""

    def __init__(self, args: Namespace, name: str, place: str, before: Day | None) -> None:
        self.args, self.name, self.place, self._before = args, name, place, before
        self._segments = before.segments if before else []

    @cached_property
    def files(self) -> list[DataFile]:
        return sources_of([self.place], "Parquet")[0]

    @cached_property
    def sources(self) -> list[Origin]:
        return command_of({}, self.files).sources

    def id_of(self, sources: Sequence[Origin]) -> str:
        """The `id` of this day, if it is made of these sources."""
        return checksum(repr((self._before and self._before.id, [one.model_dump() for one in sources])).encode())

    def make(self, started: Callable[[Job], None], asked: threading.Event) -> Day | None:
        """Make the output and the segment of the day; None if stopped before the end."""
        day_id = self.id_of(self.sources)
        made = self.args.into / MADE / day_id
        Files().make_folder(made)
        earlier, latest = made / "earlier.parquet", made / "latest.arrow"
        keys, files = user_keys(self.files, self.args.user), []
        if self._before:
            keys = np.union1d(keys, np.array([self._before.latest], np.uint64))
            pq.write_table(self._events_of(keys), earlier)
            files = [DataFile(str(earlier))]
        of_day = Namespace(**vars(self.args) | {"sources": [self.place], "examples": []})
        job, pieces, command = plan_preparation(of_day, made / "out", files, latest)
        assert job.format.histories
        begin(job)
        started(job)
        if not run(job, pieces, command, TaskThreads(of_day.workers), asked):
            return None
        table = pa.ipc.open_file(latest).read_all()
        events, late = (table.column(name)[0].as_py() for name in ("events", "late"))
        users = table.column("c0").combine_chunks()
        newest = int(np.argmax(np.asarray(pc.rank(table.column("c1"), tiebreaker="first"))))
        key_N = keys_of(users, self.args.user)
        segment = job.format.histories.named(table).append_column(KEY, pa.array(key_N))
        return Day(
            name=self.name, place=self.place, sources=self.sources, id=day_id,
            segments=self._write(day_id, segment), events=events, late=late, latest=int(key_N[newest]),
        )  # fmt: skip

    def _segment(self, name: str) -> pa.Table:
        return pa.ipc.open_file(pa.memory_map(str(self.args.into / STATE / f"{name}.arrow"))).read_all()

    def _events_of(self, keys_U: U64) -> pa.Table:
        """The last events of these users, in order of time. `keys_U`: sorted keys of the users."""
        found = []
        for name in self._segments:
            segment = self._segment(name)
            key_N = segment.column(KEY).to_numpy()
            begin_U, end_U = (np.searchsorted(key_N, keys_U, side) for side in ("left", "right"))
            at = [np.arange(0), *map(np.arange, begin_U[begin_U < end_U], end_U[begin_U < end_U])]
            found.append(segment.take(pa.array(np.concatenate(at))))
            keys_U = keys_U[begin_U == end_U]
        return pa.concat_tables(found, promote_options="permissive").drop_columns([KEY])

    def _write(self, name: str, segment: pa.Table) -> list[str]:
        """Write a segment durably. Returns all segments after the day, the newest first."""
        left = list(self._segments)
        while left and (older := self._segment(left[0])).num_rows < GROWS * segment.num_rows:
            others = older.filter(pc.invert(pc.is_in(older.column(KEY), segment.column(KEY))))
            segment = pa.concat_tables([segment, others], promote_options="permissive")
            left = left[1:]
        order = np.argsort(segment.column(KEY).to_numpy(), kind="stable")
        segment = segment.take(pa.array(order)).combine_chunks()
        with replacing(self.args.into / STATE / f"{name}.arrow") as file, pa.ipc.new_file(file, segment.schema) as out:
            out.write_table(segment)
            out.close()
        return [name, *left]


def _publish(into: Path, there: Days) -> None:
    """Give the output of days that _days.json names its place, and remove all other output."""
    for day in there.days:
        if (made := into / MADE / day.id / "out" / "train").is_dir():
            shutil.rmtree(into / day.name, ignore_errors=True)
            Files().system.rename(made, into / day.name)
            Files().sync_folder(into)
    for path in (into / MADE).iterdir():
        shutil.rmtree(path)
