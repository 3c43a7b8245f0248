"""Columns of paths are columns like others: the same examples, files and refusals as with the columns in the files."""

import csv
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.files.find import DataFile, find, partitions_of, typed
from pipeline.files.flat import open_file
from pipeline.init.look import look_at_files
from pipeline.prepare.main import main as prepare
from pipeline.workflow import Category, Metrics, Number

DAYS = ("2026-11-24", "2026-11-25", "__HIVE_DEFAULT_PARTITION__")
PATHS = {
    "day=2026-11-24/site=3/x.csv": (("day", "2026-11-24"), ("site", "3")),
    "log/a%20b=c%3Dd%2Fe/x": (("a b", "c=d/e"),),
    "day=__HIVE_DEFAULT_PARTITION__/x": (("day", None),),
    "k=a=b/empty=/x=1": (("k", "a=b"), ("empty", "")),
    "=1/plain/x": (),
}
WHOLE = {
    "3 12 0 -4": True,
    "9223372036854775807 -9223372036854775808": True,
    "9223372036854775808": False,
    "007 7": False,
    "+7 7": False,
    "1.0 1": False,
    "-0": False,
    "2026-11-24": False,
}


@pytest.mark.parametrize("path", PATHS)
def test_columns_of_a_path_are_decoded(path):
    assert partitions_of(path) == PATHS[path]


@pytest.mark.parametrize("values", WHOLE)
def test_a_column_is_whole_only_if_its_texts_are_its_numbers(values):
    files = [DataFile(f"/{value}", (("n", value), ("none", None))) for value in values.split()]
    assert {file.whole for file in typed(files, {})} == {("n",) if WHOLE[values] else ()}
    # Data to score have the kind of the training data, where they can.
    assert {file.whole for file in typed(files, {"n": "string"})} == {()}
    assert {file.whole for file in typed(files[:1], {"n": "int64"})} == {("n",) if WHOLE[values] else ()}


@pytest.fixture
def both(tmp_path):
    """The same rows with the columns in paths, and in the files."""
    for d, day in enumerate(DAYS):
        for site in (3, 12):
            rows = {"label": [0, 1] * 4, "c": [d * 10 + n for n in range(8)], "x": [n / 2 for n in range(8)]}
            path = f"day={day}/click={site // 12}/site={site}/part-0.parquet"
            write(tmp_path / "paths" / path, rows_a_group=5, **rows)
            value = None if "HIVE" in day else day
            in_file = {"day": pa.array([value] * 8, pa.string()), "click": [site // 12] * 8, "site": [site] * 8}
            write(tmp_path / "files" / path.replace("=", "-"), rows_a_group=5, **rows, **in_file)
    return tmp_path / "paths", tmp_path / "files"


USES = {
    "category": {"categories": (Category(name="day"), Category(name="c"), Category(name="site", table="c"))},
    "number": {"numbers": (Number(name="x"), Number(name="site", log1p=True))},
    "label": {"labels": ("click", "label")},
    "weight": {"weight": "site"},
    "group": {"group": "day"},
    "alone": {"labels": ("click",), "categories": (Category(name="day"),)},
}


@pytest.mark.parametrize("use", USES)
def test_examples_are_those_of_the_same_columns_in_files(both, use):
    found = []
    for root in both:
        settings = {"train": (".",)} | USES[use]
        group = settings.pop("group", None)
        source = Source(data_of(root, **settings), 3, metrics=Metrics(group=group))
        read = source.read(next(blocks_of(48, 48, 1)), ReadBuffer(LIMIT))
        found.append((epoch_of(source), source.num_examples, source.layout, group and read.groups_N.tolist()))
        source.close()
    assert found[0] == found[1]


def test_types_are_decided_over_the_files_of_all_splits(tmp_path):
    for split, site in (("train", "7"), ("validation", "07")):
        write(tmp_path / f"{split}/site={site}/a.parquet", label=[0], c=[1])
    data = data_of(tmp_path, validation=("validation",), categories=(Category(name="site"),))
    source = Source(data, 0)
    assert source.identity["train"].types["site"].startswith("dictionary<values=string")


@pytest.mark.parametrize(("values", "said"), [(["2026-11-24", "2026-11-25"], "'2026-11-25'"), ([None] * 2, "None")])
def test_a_column_of_path_and_file_must_agree(tmp_path, values, said):
    path = tmp_path / "train/day=2026-11-24/a.parquet"
    write(path, label=[0, 1], c=[1, 2], day=["2026-11-24"] * 2)
    data = data_of(tmp_path, categories=(Category(name="day"),))
    assert len(epoch_of(Source(data, 0))) == 2
    write(path, label=[0, 1], c=[1, 2], day=pa.array(values, pa.string()))
    with pytest.raises(ValueError, match=f"column 'day' has {said}, and the path says '2026-11-24'"):
        epoch_of(Source(data, 0))
    # A column that nobody reads may hold anything.
    assert len(epoch_of(Source(data_of(tmp_path), 0))) == 2


def test_nan_in_a_path_is_nan_of_the_file(tmp_path):
    write(tmp_path / "train/price=NaN/a.parquet", label=[0, 1], c=[1, 2], price=[float("nan")] * 2)
    write(tmp_path / "train/price=1.5/a.parquet", label=[0, 1], c=[1, 2], price=[1.5] * 2)
    read = [open_file(file).read_row_groups([0], ["price"])["price"] for file in find([str(tmp_path)]).files]
    assert [str(values.to_pylist()) for values in read] == ["[1.5, 1.5]", "[nan, nan]"]


def test_init_sees_columns_of_paths(both):
    look = look_at_files(find([str(both[0])]).files)
    assert {c.name: (c.kind, c.num_different) for c in look.columns if c.name in ("day", "site")} == {
        "day": ("text", 2),
        "site": ("integers", 2),
    }


def prepared(out, *argv):
    assert prepare([*map(str, argv), "--out", str(out)]) == 0
    rows = ds.dataset(out / "train").to_table().to_pylist()
    return sorted((sorted(row.items()) for row in rows), key=str)


def test_preparation_makes_real_columns_of_them(both, tmp_path, capsys):
    paths, files = both
    names = ("label:label", "day:category", "x:number")
    of_paths = prepared(tmp_path / "p", "parquet", paths, "--schema", *names, "site:category", "c:category")
    assert of_paths == prepared(tmp_path / "f", "parquet", files, "--schema", *names, "site:category", "c:category")
    for file in find([str(paths)]).files:
        rows = pq.read_table(file.place, partitioning=None).to_pylist()
        with open(file.place.replace(".parquet", ".csv"), "w", newline="") as text:
            writer = csv.DictWriter(text, ["x", "c", "label"])
            writer.writeheader()
            writer.writerows(rows)
    integers = "site:category:int64", "c:category:int64"
    assert prepared(tmp_path / "t", "csv", paths, "--schema", *names, *integers) == of_paths
    text = find([str(paths)], form="text").files
    assert look_at_files(text).sample.schema.names == ["x", "c", "label", "day", "click", "site"]


def test_text_whose_column_differs_from_its_path_is_refused(tmp_path, capsys):
    path = tmp_path / "log/site=3/a.csv"
    path.parent.mkdir(parents=True)
    argv = ["csv", str(tmp_path / "log"), "--out", str(tmp_path / "out"), "--schema", "click:label", "site:category"]
    path.write_text("click,site\n0,4\n")
    assert prepare(argv) == 1
    assert "column 'site' has '4', and the path says '3'" in capsys.readouterr().err
    path.write_text("click\n0\n")
    assert prepare([*argv, "--fresh", "--split", "file:validation=site=3/*"]) == 2
    assert "no source is left for training" in capsys.readouterr().err
    assert prepare([*argv[:-1], "site:label", "--fresh"]) == 1
    assert "3" in capsys.readouterr().err


def test_a_file_without_partitions_is_equal_with_other_names_below():
    assert DataFile("/a", below="x") == replace(DataFile("/a"), below="y")
