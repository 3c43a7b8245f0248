"""The description of columns: what a run found when it began is required of later files, also once those are gone."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.identity import Begun, as_json, begun_in
from pipeline.data.side_files import SideFiles
from pipeline.data.source import Source
from pipeline.features.settings import Calendar, Cross
from pipeline.workflow import Category, Data, Number, Time

NAMES = ("item", "hour", "pair", "weekday")


def times(day, kind):
    noon = datetime(2026, 11, day, 12, tzinfo=UTC)
    return pa.array([noon + timedelta(minutes=n) for n in range(4)], pa.timestamp("us", "UTC")).cast(kind)


def write(root, day, hour="7", **columns):
    """A file of four rows. Times without a zone are those of the columns `at` and `seen`."""
    default = {"click": [0, 1, 0, 1], "user": [1, 1, 2, 2]}
    default |= {name: [n, n + 1, n + 2, n + 3] for name, n in (("item", 1), ("site", 5), ("price", 1))}
    default |= {name: times(day, pa.timestamp("us")) for name in ("at", "seen")}
    path = root / f"day-{day}/hour={hour}/part.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({name: of for name, of in (default | columns).items() if of is not None}), path)
    return str(path)


def source(root, begun=None, **settings):
    data = Data(
        root=root, labels=("click",), numbers=(Number(name="price"),), time=Time(name="at"),
        categories=tuple(Category(name=name) for name in NAMES),
        features=(Cross(columns=("site", "user"), name="pair"), Calendar(column="seen", take={"weekday": "weekday"})),
        **({"train": ("day-1",)} | settings),
    )  # fmt: skip
    return Source(data, 0, begun=begun)


def extended(root, path, first, knows=True):
    """The run of `first` with another file. `knows`: its commit has the description."""
    kept = as_json(first.identity)
    assert kept["train"].pop("columns") if not knows else True
    return source(root, Begun(begun_in(kept).splits, (path,)))


ZONED, TEXT = pa.timestamp("us", "UTC"), ["a", "b", "c", "d"]
NEXT_DAY = {
    "category": ({"item": TEXT}, "'item' .*holds text, expected integers as in"),
    "input of a cross": ({"site": TEXT}, "'site', of type string, holds text, expected integers as in"),
    "path": ({"hour": "x9"}, "hour=x9.*'hour' .*holds text, expected integers as in"),
    "path with a zero": ({"hour": "07"}, "hour=07.*'hour' .*holds text, expected integers as in"),
    "zone": ({"at": times(2, ZONED)}, "'at' .*holds times with a zone, expected times without a zone as in"),
    "zone of an input": ({"seen": times(2, ZONED)}, "'seen', .*holds times with a zone, expected times without"),
    "dates for times": ({"seen": times(2, pa.date32())}, "'seen', .*holds dates, expected times without a zone as in"),
    "other widths": (
        {"item": pa.array([1, 2, 3, 4], pa.int8()), "price": [0.5] * 4, "seen": times(2, pa.timestamp("ns"))}, None,
    ),
    "ids as doubles": ({"item": [1.0, 2.0, None, 4.0], "site": [1.0, 2.0, None, 4.0]}, None),
    "nothing": ({"item": pa.nulls(4), "site": pa.nulls(4)}, None),
    "no category": ({"item": None}, "'item' .*is missing, expected once; .*which has: "),
    "renamed category": ({"item": None, "Item": TEXT}, "'item' .*is missing, expected once; did you mean 'Item'"),
    "renamed input": ({"site": None, "si_te": TEXT}, "'pair' .*is made of 'site', .*did you mean 'si_te'"),
    "renamed number": ({"price": None, "PRICE": TEXT}, "'price' .*is missing, expected once; did you mean 'PRICE'"),
    "renamed label": ({"click": None, "Click": TEXT}, "'click' .*is missing, expected once; did you mean 'Click'"),
    "renamed time": ({"at": None, "AT": TEXT}, "no column 'at', which data.time names; did you mean 'AT'"),
}  # fmt: skip
"""Differences of the next day, each with its refusal."""


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("what", NEXT_DAY)
def test_the_next_day_is_refused_as_if_both_came_at_once(tmp_path, what, is_gone):
    columns, said = NEXT_DAY[what]
    before, first = write(tmp_path, 1), source(tmp_path)
    path = write(tmp_path, 2, **columns)
    if is_gone:
        (tmp_path / before).unlink()
    for knows in (True, False) if what != "zone" or not is_gone else (True,):
        if said is None:
            kept = extended(tmp_path, path, first, knows).identity["train"].columns
            assert {name: kept[name] for name in first.identity["train"].columns} == first.identity["train"].columns
            continue
        with pytest.raises(ValueError, match=said) as caught:
            extended(tmp_path, path, first, knows)
        assert path in str(caught.value)
        assert ("the training data" in str(caught.value)) == ("holds" in said and (knows or is_gone or what != "zone"))


def test_a_file_that_lacks_a_column_is_read_again_on_resume(tmp_path):
    paths = write(tmp_path, 1), write(tmp_path, 2, item=None)
    both = source(tmp_path, train=paths)
    (tmp_path / paths[0]).unlink()
    begun = Begun(both.identity, sides=SideFiles(done=1))
    assert "'item' is missing in 1 of 1 files" in source(tmp_path, begun).notes[0]


def test_the_description_names_all_columns_and_no_identity(tmp_path):
    write(tmp_path, 1, other=pa.array(TEXT), empty=pa.nulls(4))
    train = source(tmp_path).identity["train"]
    names = "click item site user price at seen other hour pair weekday"
    assert train.columns.keys() == {*names.split()}
    assert (train.columns["at"], train.columns["hour"], train.columns["other"]) == ("timestamp[us]", "int64", "string")
    assert train.digest == train.model_copy(update={"columns": None}).digest


def test_paths_are_typed_over_all_splits_with_spans_too(tmp_path):
    write(tmp_path, 1, "7")
    write(tmp_path, 3, "x")
    train = source(tmp_path, validation=("day-3",)).identity["train"]
    assert train.columns["hour"].startswith("dictionary<values=string")
