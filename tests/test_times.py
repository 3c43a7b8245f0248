"""The table of times: each place reads each form of a time as the same day and hour, or refuses it by the column."""

import json
import threading
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.data.files import columns_of, with_derived
from pipeline.data.outside import Outside
from pipeline.data.source import Source, layout_of
from pipeline.data.table import TableReader
from pipeline.features.settings import Calendar
from pipeline.files.description import Description
from pipeline.files.find import named
from pipeline.files.flat import open_file
from pipeline.files.plausible import check_plausible, timestamps
from pipeline.init.look import look_at_files
from pipeline.init.roles import choose_roles
from pipeline.prepare.arguments import read_arguments
from pipeline.prepare.command import plan_preparation
from pipeline.prepare.run import begin
from pipeline.prepare.sequences import sort_events
from pipeline.prepare.splits import TEST, ByTime
from pipeline.prepare.steps import do_piece
from pipeline.serving.features import features_of
from pipeline.serving.http.request import read_request
from pipeline.serving.predictor import as_table
from pipeline.serving.served_model import inputs_of
from pipeline.workflow import Category, Data, Model, Number, Schedule, Time, Workflow

BEGIN = int(datetime(2026, 11, 19, 8, 30, tzinfo=UTC).timestamp())
STEP = 36 * 3600
"""Seconds from one row to the next: 19 November, 8:30, and 20 November, 20:30."""
WANT = [(19, 8), (20, 20)]


def counts(per_second):
    return lambda utc: pc.multiply(utc.cast("int64"), per_second)


def texts(form, kind="string"):
    return lambda utc: pc.strftime(utc, form).cast(kind)


def stamps(unit, zone=None):
    return lambda utc: (utc if zone else pc.local_timestamp(utc)).cast(pa.timestamp(unit, zone))


FORMS = {
    "s": counts(1), "ms": counts(10**3), "us": counts(10**6), "ns": counts(10**9),
    "digits of the day": texts("%Y%m%d", "int64"), "of the hour": texts("%Y%m%d%H", "int64"),
    "of the second": texts("%Y%m%d%H%M%S", "int64"),
    "ISO text": texts("%Y-%m-%dT%H:%M:%S"), "with a blank": texts("%Y-%m-%d %H:%M:%S"), "of a date": texts("%Y-%m-%d"),
    "with Z": texts("%Y-%m-%dT%H:%M:%SZ"),
    "with an offset": lambda utc: texts("%Y-%m-%dT%H:%M:%S%z")(utc.cast(pa.timestamp("s", "Asia/Tokyo"))),
    "float": lambda utc: counts(1)(utc).cast("float64"),
    "date": lambda utc: utc.cast("date32"),
    "naive s": stamps("s"), "naive ms": stamps("ms"), "naive us": stamps("us"), "naive ns": stamps("ns"),
    "zoned us": stamps("us", "UTC"), "zoned ns": stamps("ns", "UTC"), "another zone": stamps("us", "Asia/Tokyo"),
}  # fmt: skip


def times(form, rows=2, step=STEP):
    return FORMS[form](pa.array([BEGIN + n * step for n in range(rows)], pa.timestamp("s", "UTC")))


def write(folder, form, name="log.parquet", rows=2, step=STEP):
    """A log with the column `when` in a form."""
    folder.mkdir(exist_ok=True, parents=True)
    draw = np.random.default_rng(1).integers(0, 2, rows)
    columns = {"click": draw, "item": range(rows), "user": [7] * rows, "when": times(form, rows, step)}
    pq.write_table(pa.table(columns), folder / name)
    return named(folder / name)


def data_of(folder, **settings):
    return Data(root=folder, train=("log.parquet",), labels=("click",), categories=(Category(name="item"),), **settings)


def parts(table):
    return list(zip(table.column("day").to_pylist(), table.column("hour").to_pylist(), strict=True))


def spans(**settings):
    """Days of `data.time`; the hours are those of spans by hour."""

    def read(folder, form):
        write(folder, form)
        data = data_of(folder, time=Time(name="when", **settings), span="hour")
        labels = Source(data, 0).calendar.labels
        return [(int(label[8:10]), int(label[11:13])) for label in labels if label.startswith("2026-11")]

    return read


def made(as_trained=None, **settings):
    """Columns that Calendar makes of a file: in training, or in `score` of a model of a column of this type."""
    feature = Calendar(column="when", take={"day": "day", "hour": "hour"}, **settings)

    def read(folder, form):
        model = Description({"when": as_trained}, years={"when": (2026, 2026)}) if as_trained else Description()
        files = with_derived([write(folder, form)], data_of(folder, features=(feature,)), model)
        with open_file(*files) as opened:
            return parts(opened.read_row_groups([0], ["day", "hour"]))

    return read


def given(as_trained, ask=False, **settings):
    """Numbers that a trained model gets: from `predict`, or from requests."""
    feature = Calendar(column="when", take={"day": "day", "hour": "hour"}, **settings)
    numbers = (Number(name="day"), Number(name="hour"))
    data = Data(train=("x",), labels=("click",), features=(feature,), numbers=numbers, categories=("item",))
    workflow = Workflow(name="t", data=data, model=Model(kind="LR", embedding_dim=4), schedule=Schedule(batch_size=9))
    features = features_of(workflow, True, {"when": as_trained, "item": "int64"}, {}, True)
    description = Description(features.inputs, years={"when": (2026, 2026)})
    columns, layout = columns_of(data)[1:], layout_of(data, features.kinds)

    def asked(column):
        values = [one.isoformat() if hasattr(one, "isoformat") else one for one in column.to_pylist()]
        kind = {int: "INT64", float: "FP64", str: "BYTES"}[type(values[0])]
        named_values = (("when", kind, values), ("item", "INT64", [1, 2]))
        tensors = [{"name": n, "datatype": k, "shape": [2], "data": v} for n, k, v in named_values]
        return read_request(json.dumps({"inputs": tensors}).encode(), None, inputs_of(features), ()).table

    def read(folder, form):
        table = {"when": times(form), "item": [1, 2], "other": [{}, 1]}
        table = asked(times(form)) if ask else as_table(table, features.reads())
        (block,) = TableReader(columns, features.kinds, layout, data, description).batches(table, 9, Outside("refuse"))
        return [tuple(map(int, row)) for row in block.numbers_NX]

    return read


def split(since):
    def read(folder, form):
        table = pa.table({"when": times(form)})
        places = ByTime("when", test_from=since).of(0, 0, write(folder, form), table)
        return WANT if (places == TEST).tolist() == [False, True] else places.tolist()

    return read


def sequences(of_events):
    """Histories of examples in a form, from events in another one, every twelve hours."""

    def read(folder, form):
        write(folder / "events", of_events, rows=3, step=STEP // 3)
        write(folder / "examples", form)
        words = (
            f"sequences {folder}/events --examples {folder}/examples --user user --time when --items item --workers 1"
        )
        argv = f"{words} --schema click:label item:category --out {folder}/out".split()
        job, pieces, _ = plan_preparation(read_arguments(argv), folder / "out")
        begin(job)
        sort_events(job.format.histories, "", 1, threading.Event())
        for piece in pieces:
            do_piece(job, piece)
        tables = [pq.read_table(path, partitioning=None) for path in (folder / "out").glob("*/*.parquet")]
        rows = pa.concat_tables(tables).sort_by("item").column("hist_item").to_pylist()
        return WANT if rows == [[], [0, 1, 2]] else rows

    return read


def role(folder, form):
    look = look_at_files([write(folder, form, rows=3000, step=660)])
    (choice,) = [one for one in choose_roles(look, ["click"]) if one.column.name == "when"]
    return WANT if choice.role == "time" else choice.role


def trained(as_trained, **settings):
    """Readers of a trained model: `score`, `predict` and requests."""
    return made(as_trained, **settings), given(as_trained, **settings), given(as_trained, ask=True, **settings)


TABLE = {
    "data.time by hour": ([spans()], "xxxxxxxxxxxxxd======="),
    "data.time in seconds": ([spans(unit="s")], "=xxxx?xxxxxxxxxxxxxxx"),
    "Calendar": ([made()], "xxxxxxxxxxxxxd======="),
    "Calendar of ms": ([made(unit="ms")], "?=?????xxxxxxxxxxxxxx"),
    "Calendar of digits": ([made(form="%Y%m%d%H")], "xxxxx=xxxxxxxxxxxxxxx"),
    "Calendar of text": ([made(form="%Y-%m-%d %H:%M:%S")], "xxxxxxxx=xxxxxxxxxxxx"),
    "a model of naive times": (trained("timestamp[us]"), "xx=xxxx==xxxxx====xxx"),
    "a model of zoned times": (trained("timestamp[us, tz=Asia/Tokyo]"), "xx=xxxxxxx==xxxxxx==="),
    "a model of dates": (trained("date32[day]"), "xxxxxxxdddxxxdddddxxx"),
    "a model of ms": (trained("int64", unit="ms"), "x=xxxxxxxx==xxxxxx==="),
    "a model of digits": (trained("int64", form="%Y%m%d%H"), "xxxxx=xxxxxxxxxxxxxxx"),
    "a model of text": (trained("string", form="%Y-%m-%d %H:%M:%S"), "xxxxxxxx=xxxxxxxxxxxx"),
    "split from a time": ([split("2026-11-20T00:00:00")], "xxxxxxx=====xx======="),
    "split from seconds": ([split(str(BEGIN + 1))], "=???????????=xxxxxxxx"),
    "prepare sequences": ([sequences("naive us")], "xxxxxxxxxxxxxx====xxx"),
    "prepare sequences of ms": ([sequences("ms")], "?=?????xxxxx?xxxxxxxx"),
    "init": ([role], "====================="),
}
"""Places, and what each makes of each form, in the order of FORMS: "=" the same day and hour, "d" the same day at hour
0, "x" refused by a message with the column, "?" something else."""


@pytest.mark.parametrize("place", TABLE)
def test_a_time_is_read_alike_or_refused_by_name(place, tmp_path):
    readers, expected = TABLE[place]
    for n, read in enumerate(readers):
        found = ""
        for k, form in enumerate(FORMS):
            try:
                got = read(tmp_path / f"{n}-{k}", form)
                found += "=" if got == WANT else "d" if got == [(day, 0) for day, _ in WANT] else "?"
            except (ValueError, OSError) as error:
                found += "x" if "when" in str(error) else "?"
        assert found == expected, n


NOON = int(datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp())
TIMES = {
    "seconds": ([NOON], "s", None),
    "nanoseconds": ([NOON * 10**9], "ns", None),
    "milliseconds as seconds": ([NOON * 1000], "s", "the unit 's', .*in the unit 'ms' it would be 2026-11-24"),
    "seconds as milliseconds": (
        [NOON],
        "ms",
        f"{NOON} in the unit 'ms', or 1970-01-21.*in the unit 's' it would be 2026",
    ),
    "digits as seconds": ([NOON, 20261124], "s", r"row 11: .*20261124 in .*digits are converted by .*'%Y%m%d'"),
    "digits of seconds": ([20261124120000], "ms", "digits are converted by"),
    "bounds": ([631_152_000, 4_133_980_799], "s", None),
    "before 1990": ([631_151_999], "s", "1989-12-31T23:59:59; .*; no unit fits: correct it, or leave the row out"),
    "2101": ([4_133_980_800], "s", "2101-01-01"),
    "never": (pa.array([NOON, 253402300799], pa.timestamp("s")), None, "row 11: at is .*, or 9999-12-31"),
    "dates": (pa.array([date(2026, 1, 1), date(1, 1, 1)]), None, "0001-01-01"),
    "a dictionary": (pa.array([0], pa.timestamp("us", "UTC")).dictionary_encode(), None, "1970-01-01"),
    "mixed numbers": ([0, NOON], None, "row 10: at is 0 in the unit 's'"),
    "numbers that are no times": ([0, 7, 1_000], None, None),
    "floats": ([NOON + 0.5, NOON * 1000.0], None, "in the unit 's' it would be"),
    "texts": (["1970-01-01"], None, None),
    "none": (pa.array([], pa.timestamp("s")), None, None),
}
"""Times, the unit of integers, and the refusal."""


@pytest.mark.parametrize("what", TIMES)
def test_implausible_times_are_refused_with_the_unit_that_fits(what):
    times, unit, said = TIMES[what]
    found = timestamps(times if isinstance(times, pa.Array) else pa.array(times), unit)
    if said is None:
        return check_plausible(found, "a.parquet", 10, "at")
    with pytest.raises(ValueError, match=f"a.parquet, .*{said}"):
        check_plausible(found, "a.parquet", 10, "at")
