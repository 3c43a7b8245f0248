"""The draft reads hour and weekday of the first time that has hours, in any form that `Calendar` takes."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from support.data.drafts import drafted, write_logs
from support.runs.harness import run

from pipeline.init.look import look_at_files
from pipeline.init.roles import choose_roles
from pipeline.init.trial import rows_of
from pipeline.init.values import drafted_time
from pipeline.prepare.draft import Draft, DraftedCategory, DraftedTime

ROWS = 900
T = 1_790_000_000 + np.arange(ROWS) * 3000


def texts(form):
    return [datetime.datetime.fromtimestamp(int(t), datetime.UTC).strftime(form) for t in T]


def stamps(unit, zone=None):
    return pa.array(T, pa.timestamp("s", zone)).cast(pa.timestamp(unit, zone))


FORMS = {
    "timestamps": (stamps("us"), {}),
    "timestamps of a place": (stamps("ns", "Asia/Tokyo"), {"zone": "Asia/Tokyo"}),
    "timestamps of an offset": (stamps("ms", "+09:00"), {}),
    "seconds": (T, {"unit": "s"}),
    "microseconds": (T * 10**6, {"unit": "us"}),
    "hours as digits": ([*map(int, texts("%y%m%d%H"))], {"form": "%y%m%d%H"}),
    "seconds as digits": ([*map(int, texts("%Y%m%d%H%M%S"))], {"form": "%Y%m%d%H%M%S"}),
    "texts": (texts("%Y-%m-%dT%H:%M:%SZ"), {"form": "%Y-%m-%dT%H:%M:%SZ"}),
    "texts without seconds": (texts("%d.%m.%Y %H:%M"), {"form": "%d.%m.%Y %H:%M"}),
    "texts of two forms": (["2026-09-20 10:00", *texts("%Y-%m-%d %H:%M:%S")[1:]], None),
    "times with nulls": ([None, *T.tolist()[1:]], None),
    "dates": (pa.array((T // 86400).astype(np.int32), pa.date32()), None),
    "timestamps of days": (stamps("s").cast(pa.date32()).cast(pa.timestamp("s")), None),
    "floats": (T + 0.5, None),
}
"""Form -> values, and the settings of `Calendar` besides the parts; None: there is no `Calendar`."""


def log(values):
    rng = np.random.default_rng(0)
    return pa.table({"click": rng.integers(0, 2, ROWS), "user": rng.integers(0, 50, ROWS), "time": values})


@pytest.mark.parametrize("form", FORMS)
def test_the_first_time_with_hours_gives_hour_and_weekday(tmp_path, form):
    values, settings = FORMS[form]
    made = log(values)
    look = look_at_files([write_logs(tmp_path, a=made) / "a.parquet"])
    times = [choice.column.name for choice in choose_roles(look, ["click"]) if choice.role == "time"]
    found = drafted_time(look, ["user", *times], [*made.column_names, "old_hour"], look.paths)
    assert times == ["time"]
    assert (found and found.settings) == settings
    # No column of the files has such a name.
    assert found is None or found.take == {"hour": "time__hour", "weekday": "time_weekday"}


def test_a_text_of_another_form_outside_the_sample_is_noticed(tmp_path):
    write_logs(tmp_path, a=log(texts("%Y-%m-%d %H:%M:%S")), b=log(["2026-09-20 10:00"] * ROWS))
    look, *other = (look_at_files([tmp_path / f"{name}.parquet"]) for name in "ab")
    assert drafted_time(look, ["time"], ["time"], look.paths)
    assert drafted_time(look, ["time"], ["time"], [*look.paths, *other[0].paths]) is None


def test_a_draft_with_hours_trains(tmp_path):
    workflow = drafted(write_logs(tmp_path, "csv", log=log(FORMS["hours as digits"][0])))
    assert [category.name for category in workflow.data.categories] == ["user", "time_hour", "time_weekday"]
    settings = {"model.args": {"hidden": (4,)}, "schedule.epochs": 1, "schedule.plateau": None}
    assert 0 < run(workflow.with_settings(settings))["logloss"] < 1


def test_candidates_get_the_time(tmp_path):
    time = DraftedTime("time", {"hour": "time_hour"}, {})
    draft = Draft("d", "", "", {}, ["click"], [], [DraftedCategory("user")], "", [], ROWS, {"click": 0.5}, time=time)
    files = look_at_files([write_logs(tmp_path, a=log(stamps("s"))) / "a.parquet"]).paths
    assert rows_of(draft, {"train": files, "validation": files}, []).train.column_names == ["click", "user", "time"]
