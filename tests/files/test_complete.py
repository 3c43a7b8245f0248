"""Files of a folder are taken once they are complete, in order, and never half-written."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.stores.s3_server import environment, serving_s3

from pipeline.files.complete import Arrivals

RENAME, SUCCESS, MANIFEST = "rename", "success", "manifest:names.txt"


def write(path, rows=5):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": list(range(rows))}), path)
    return str(path)


def names(arrivals, known=(), looks=2):
    """Names of the complete files at the last of some looks."""
    for _ in range(looks):
        found, _ = arrivals.look(known)
    return [place.removeprefix(f"{arrivals.folder}/") for place in found]


def test_a_file_is_complete_once_it_is_renamed(tmp_path):
    arrivals = Arrivals(str(tmp_path), RENAME)
    write(tmp_path / ".day-1.parquet.tmp")
    write(tmp_path / "day-2.parquet.inprogress")
    assert names(arrivals) == []
    (tmp_path / ".day-1.parquet.tmp").rename(tmp_path / "day-1.parquet")
    assert names(arrivals, looks=1) == []
    assert names(arrivals, looks=1) == ["day-1.parquet"]
    assert names(arrivals, {str(tmp_path / "day-1.parquet")}) == []


def test_no_beginning_of_a_file_is_ever_complete(tmp_path):
    whole = (tmp_path / "whole").with_suffix(".parquet")
    write(whole)
    content = whole.read_bytes()
    (tmp_path / "in").mkdir()
    arrivals = Arrivals(str(tmp_path / "in"), RENAME)
    for length in range(len(content)):
        (tmp_path / "in" / "day-1.parquet").write_bytes(content[:length])
        assert names(arrivals, looks=3) == [], length
    (tmp_path / "in" / "day-1.parquet").write_bytes(content)
    assert names(arrivals) == ["day-1.parquet"]


def test_a_file_that_still_changes_is_not_complete(tmp_path):
    arrivals = Arrivals(str(tmp_path), RENAME)
    for rows in (5, 6, 7):
        write(tmp_path / "day-1.parquet", rows)
        assert names(arrivals, looks=1) == []
    assert names(arrivals, looks=1) == ["day-1.parquet"]


def test_an_incomplete_file_holds_back_those_after_it(tmp_path):
    arrivals = Arrivals(str(tmp_path), RENAME)
    for day in (1, 3, 10):
        write(tmp_path / f"day-{day}.parquet")
    (tmp_path / "day-2.parquet").write_bytes(b"PAR1 and so on")
    assert names(arrivals) == ["day-1.parquet"]
    assert arrivals.look()[1] == [("day-2.parquet", "has no end of a Parquet file")]
    write(tmp_path / "day-2.parquet")
    assert names(arrivals) == [f"day-{day}.parquet" for day in (1, 2, 3, 10)]


def test_a_folder_is_complete_with_its_mark_of_success(tmp_path):
    arrivals = Arrivals(str(tmp_path), SUCCESS)
    for day in (1, 2):
        write(tmp_path / f"day={day}" / "part-00000")
        write(tmp_path / f"day={day}" / "site=3" / "part-00001.parquet")
    (tmp_path / "day=2" / "_SUCCESS").touch()
    assert names(arrivals) == []
    assert {why for _, why in arrivals.look()[1]} == {"there is no _SUCCESS in its folder"}
    (tmp_path / "day=1" / "_SUCCESS").touch()
    first = ["day=1/part-00000", "day=1/site=3/part-00001.parquet"]
    assert names(arrivals) == [*first, *(name.replace("=1", "=2") for name in first)]


def test_a_manifest_names_the_complete_files(tmp_path):
    arrivals = Arrivals(str(tmp_path), MANIFEST)
    for day in (1, 2, 3):
        write(tmp_path / f"day-{day}.parquet")
    assert names(arrivals) == []
    (tmp_path / "names.txt").write_text("day-1.parquet\n./day-2.parquet\nday-3.parq")
    assert names(arrivals) == ["day-1.parquet", "day-2.parquet"]
    write(tmp_path.parent / "elsewhere.parquet")
    (tmp_path / "names.txt").write_text("day-3.parquet\n../elsewhere.parquet\nday-2b.parquet\n")
    assert names(arrivals) == []
    (tmp_path / "names.txt").write_text("day-3.parquet\nday-2b.parquet\nday-1.parquet\n")
    assert names(arrivals) == ["day-1.parquet"]
    assert arrivals.look()[1] == [("day-2b.parquet", "does not exist")]


@pytest.mark.parametrize("text", ["", "renamed", "manifest", "manifest:", "success:x"])
def test_a_rule_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="expected rename, success, or manifest:NAME"):
        Arrivals("arriving", text)


def test_objects_in_a_store_are_complete_at_the_first_look(monkeypatch):
    with serving_s3() as (bucket, port):
        for name, value in environment(port).items():
            monkeypatch.setenv(name, value)
        write(bucket / "arriving/day-1.parquet")
        (bucket / "arriving/day-2.parquet").write_bytes(b"PAR1 and so on")
        place = "s3://b/arriving"
        assert Arrivals(place, RENAME).look() == (
            [f"{place}/day-1.parquet"], [("day-2.parquet", "has no end of a Parquet file")]
        )  # fmt: skip
