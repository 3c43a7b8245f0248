"""Splits and labels are functions of the row, and what cannot be split is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.kernels.hashing import hash_integers, mix_reference
from pipeline.prepare.main import main
from pipeline.prepare.splits import OUTSIDE, TEST, TRAIN, VALIDATION, ByFile, ByTime, Ratio, parse

LOG, NOW = Path("logs/day_0.gz"), 1_790_000_000


def rows(count, **columns):
    return pa.table({"x": pa.array(range(count), pa.int32()), **columns})


def test_ratio_splits_have_the_requested_shares():
    split_N = Ratio(0.1, 0.2).of(3, 4, LOG, rows(200_000))
    shares = np.bincount(split_N, minlength=3) / len(split_N)
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.004)


def test_draws_of_parts_files_and_seeds_are_independent():
    draws = [
        Ratio(0.25, 0.25, seed).of(file, number, LOG, rows(10_000))
        for seed, file, number in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
    ]
    for n, one in enumerate(draws):
        for other in draws[:n]:
            # Two independent draws agree with probability 1/4 + 2/16.
            assert (one == other).mean() == pytest.approx(0.375, abs=0.03)
    assert (draws[0] == Ratio(0.25, 0.25).of(0, 0, LOG, rows(10_000))).all()


@settings(deadline=None)
@given(st.integers(), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_a_draw_is_the_key_of_its_row(seed, file, number):
    salt = mix_reference(mix_reference(mix_reference(seed) ^ file) ^ number)
    hash_integers(np.arange(9), np.uint64(salt), draws_N := np.empty(9, np.uint64))
    expected_N = np.where(draws_N < 1 << 62, VALIDATION, np.where(draws_N < 1 << 63, TEST, TRAIN))
    assert (Ratio(0.25, 0.25, seed).of(file, number, LOG, rows(9)) == expected_N).all()


def test_a_larger_held_out_share_only_takes_rows_from_training():
    few, *more = (Ratio(*shares).of(0, 0, LOG, rows(10_000)) for shares in ((0.1, 0.1), (0.2, 0.1), (0.1, 0.2)))
    for many in more:
        assert (many[few == VALIDATION] == VALIDATION).all()
        assert (many[few == TEST] != TRAIN).all()


@pytest.mark.parametrize(
    ("times", "validation", "test"),
    [
        (pa.array([1, 9, 5, 7], pa.int64()), "5", "9"),
        (pa.array(["a", "d", "b", "c"]), "b", "d"),
        (pa.array(["a", "d", "b", "c"]).dictionary_encode(), "b", "d"),
        (pa.array([NOW + 1, NOW + 9, NOW + 5, NOW + 7], pa.timestamp("s")),
         "2026-09-21 14:13:25",
         "2026-09-21T14:13:29"),
    ],
    ids=["integer", "text", "dictionary", "timestamp"],
)  # fmt: skip
def test_a_time_split_puts_each_row_on_its_side_of_the_boundary(times, validation, test):
    table = rows(4, when=times)
    assert ByTime("when", validation, test).of(0, 0, LOG, table).tolist() == [TRAIN, TEST, VALIDATION, VALIDATION]
    assert ByTime("when", None, test).of(0, 0, LOG, table).tolist() == [TRAIN, TEST, TRAIN, TRAIN]


@pytest.mark.parametrize(
    "times", [pa.array([NOW, 0]), pa.array([NOW, 0], pa.timestamp("s")), ["2026-11-24", "1970-01-01"]]
)
def test_a_time_that_is_none_is_refused_with_its_row(times):
    with pytest.raises(ValueError, match=r"part 7, row 1: column 'when' \(--split time\) is 0 in the unit"):
        ByTime("when", "2026-01-01").of(0, 7, LOG, rows(2, when=times))


@pytest.mark.parametrize("odd", [0, NOW * 1000])
def test_few_times_that_are_none_are_for_training(odd):
    found = ByTime("when", str(NOW)).of(0, 7, LOG, rows(3, when=pa.array([NOW, odd, NOW])))
    assert found.tolist() == [VALIDATION, OUTSIDE, VALIDATION]


def test_a_row_without_a_time_is_refused():
    with pytest.raises(ValueError, match=r"1 rows of logs/day_0.gz, part 7, have no when"):
        ByTime("when", "1").of(0, 7, LOG, rows(2, when=pa.array([1, None])))


def test_a_file_split_follows_the_names_of_sources():
    split = ByFile(validation=("day_22*",), test=("*/b/day_23.gz", "day_24.gz"))
    found = [split.split_of(Path(f"logs/{name}")) for name in ("day_2.gz", "day_22.gz", "b/day_23.gz", "day_24.gz")]
    assert found == [TRAIN, VALIDATION, TEST, TEST]
    assert split.of(0, 0, Path("day_22"), rows(3)).tolist() == [VALIDATION] * 3


def test_a_split_is_parsed_as_written():
    assert parse(None) == Ratio()
    assert parse("ratio:validation=0.1,test=0.2,seed=7") == Ratio(0.1, 0.2, 7)
    assert parse("time:hour,validation_from=14103000") == ByTime("hour", "14103000")
    assert parse("file:validation=a,b*,test=c") == ByFile(("a", "b*"), ("c",))


SCHEMA = ["click:label:no/yes", "user:category:int64"]


def prepared(folder, *argv):
    code = main([*map(str, argv), "--out", str(folder), "--workers", "1"])
    return code, {path.parent.name: pq.read_table(path) for path in sorted(folder.glob("*/*.parquet"))}


@pytest.mark.parametrize(("kind", "values"), [("csv", ["No", "yes"]), ("parquet", ["no", "Yes"]), ("parquet", [-1, 1])])
def test_the_named_values_of_a_label_become_0_and_1(tmp_path, kind, values):
    if kind == "csv":
        (tmp_path / "log").write_text("click,user\n" + "".join(f"{label},7\n" for label in values))
        schema = SCHEMA
    else:
        pq.write_table(pa.table({"click": values, "user": [7, 7]}), tmp_path / "log")
        schema = ["click:label:-1/1" if values[0] == -1 else "click:label:no/yes", "user:category"]
    (tmp_path / "schema.toml").write_text(f"columns = {SCHEMA}")
    named = [str(tmp_path / "schema.toml")] if kind == "csv" else schema
    code, tables = prepared(tmp_path / "out", kind, tmp_path / "log", "--schema", *named)
    assert (code, tables["train"]["click"].to_pylist()) == (0, [0, 1])


def test_a_third_value_of_a_label_is_refused_with_its_line(tmp_path, capsys):
    (tmp_path / "log").write_text("click,user\nyes,1\nmaybe,2\n")
    assert prepared(tmp_path / "out", "csv", tmp_path / "log", "--schema", *SCHEMA)[0] == 1
    assert "line 3: column 'click': a label must be no or yes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("header", "text"),
    [(True, "user\n7\n8\n"), (True, "user,click\n7,maybe\n8,\n"), (False, "7\n8\n"), (False, "no,7\n,8\n")],
)
def test_rows_to_be_scored_need_no_label(tmp_path, capsys, header, text):
    (tmp_path / "log").write_text(text)
    (tmp_path / "schema.toml").write_text(f"columns = {SCHEMA}\nheader = {str(header).lower()}")
    source = ("csv", tmp_path / "log", "--schema", tmp_path / "schema.toml", "--no-label")
    code, tables = prepared(tmp_path / "out", *source)
    assert (code, {name: table.to_pydict() for name, table in tables.items()}) == (0, {"test": {"user": [7, 8]}})
    assert "pipeline score RUN" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"test", ".prepare", "_prepared.json"}
    assert prepared(tmp_path / "out", *source)[0] == 0


def test_parquet_to_be_scored_needs_no_label(tmp_path):
    pq.write_table(pa.table({"user": [7, 8]}), tmp_path / "log")
    schema = ("--schema", "c:label", "user:category")
    code, tables = prepared(tmp_path / "out", "parquet", tmp_path / "log", "--no-label", *schema)
    assert (code, tables["test"].to_pydict()) == (0, {"user": [7, 8]})
