"""Which data a split is: the same by content, wherever it lies; another one by any of its parts."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.identity import as_json, begun_in, differences, file_difference, look_at, split_identity
from pipeline.files.flat import open_file

COLUMNS = ("label", "key")
TABLE = {"label": pa.array([0, 1, 1, 0, 1], pa.int8()), "key": [5, 6, 7, 8, 5], "unused": list("abcde")}


def identity_of(folder, table=TABLE, name="a.parquet", row_group_size=2, **options):
    folder.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.table(table), folder / name, row_group_size=row_group_size, **options)
    return seen(folder / name)


def seen(path):
    with open_file(path) as file:
        return look_at(path, path.name, file, COLUMNS, ("label",))


def said(was, found):
    return file_difference(was, found, was.types, found.types)


def test_a_copied_file_has_the_same_identity(tmp_path):
    identity = identity_of(tmp_path)
    assert identity.row_groups == [(2, 2), (1, 1)]
    assert identity.types == {"key": "int64", "label": "int8"}
    assert identity.size == (tmp_path / "a.parquet").stat().st_size
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "a.parquet", tmp_path / "copy" / "a.parquet")
    assert seen(tmp_path / "copy" / "a.parquet") == identity
    assert said(identity, identity) is None


def test_inverted_labels_change_only_the_sample(tmp_path):
    """Statistics, sizes and indices into the dictionary are those of before."""
    was, inverted = (
        identity_of(tmp_path / name, {"label": pa.array(labels, pa.int8()), "key": [5, 6, 7, 8]})
        for name, labels in (("was", [0, 1, 1, 0]), ("inverted", [1, 0, 0, 1]))
    )
    assert (inverted.size, inverted.footer) == (was.size, was.footer)
    assert said(was, inverted) == (
        "a.parquet: other content of the same size (checksum of the beginning of its columns)"
    )


@pytest.mark.parametrize("name", ["label", "user.label"])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_inverted_labels_of_any_row_group_change_the_sample(tmp_path, name, group):
    def seen_of(folder, labels):
        path = tmp_path / folder / "a.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({name: pa.array(labels, pa.int8()), "key": range(6)}), path, row_group_size=2)
        with open_file(path) as file:
            return look_at(path, path.name, file, (name, "key"), (name,))

    labels = [0, 1] * 3
    inverted = labels[: 2 * group] + [1, 0] + labels[2 * group + 2 :]
    was, found = seen_of("was", labels), seen_of("found", inverted)
    assert (found.size, found.footer) == (was.size, was.footer)
    assert found.sample != was.sample


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"table": TABLE | {"key": list("56785")}}, "type of column 'key' was int64, is string"),
        ({"row_group_size": 4}, "row groups were 2 of 2 rows, 1 of 1 rows, are 1 of 4 rows, 1 of 1 rows"),
        ({"table": TABLE | {"unused": ["a" * 999] * 5}}, "size was "),
        ({"table": TABLE | {"key": [5, 6, 7, 8, 6]}}, "other content of the same size"),
        ({"table": TABLE | {"unused": list("vwxyz")}}, "other content of the same size (checksum of its footer)"),
    ],
)
def test_the_first_difference_is_named(tmp_path, change, expected):
    was, found = identity_of(tmp_path), identity_of(tmp_path / "other", **change)
    assert said(was, found).startswith(f"a.parquet: {expected}")


def test_a_file_without_rows_has_an_identity(tmp_path):
    empty = {name: pa.array([], pa.int64()) for name in TABLE}
    assert identity_of(tmp_path, empty).row_groups in ([], [(1, 0)])


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), max_size=4), st.lists(st.sampled_from("abcd"), max_size=4))
def test_splits_are_the_same_only_with_the_same_files_in_order(tmp_path_factory, before, now):
    folder = tmp_path_factory.getbasetemp() / "files"
    if not folder.exists():
        for number, name in enumerate("abcd"):
            kind = "int64" if name != "d" else "int32"
            identity_of(folder, TABLE | {"key": pa.array([number] * 5, kind)}, name)
    one, other = (split_identity([seen(folder / name) for name in names]) for names in (before, now))
    assert (differences(as_json({"train": one}), as_json({"train": other})) == {}) == (before == now)
    assert (one.digest == other.digest) == (before == now)
    assert [one.types_of(file)["key"] for file in one.files] == ["int64" if n != "d" else "int32" for n in before]


@pytest.mark.parametrize(
    ("names", "of_files"),
    [
        (["a", "b"], ([[0, 2]], [[1, 5]])),
        (["a", "b"], ([[0, 3]], [[1, 6]])),
        (["a", "b"], ([[0, 5]], [[0, 5]])),
        (["a", "b"], ([[0, 5]], [[None, 5]])),
        (["a", "b"], ([[0, 5]], [[2, 5]])),
        (["a", "a"], ([[0, 5]], [[1, 5]])),
        (["a", "b"], ([[0, 5], [1, 0]], [[0, 5]])),
        (["a"], ([[0, 5]], None)),
        (None, ([[0, 5]], [[0, 5]])),
    ],
)
def test_spans_that_no_calendar_makes_are_refused(tmp_path, names, of_files):
    files = [identity_of(tmp_path, name=name) for name in ("a.parquet", "b.parquet")]
    split = as_json({"train": split_identity(files)})["train"]
    plain = [file | {"spans": [[number, 5]]} for number, file in enumerate(split["files"])]
    good = begun_in({"train": split | {"spans": ["a", "b"], "files": plain}})
    assert good.splits["train"].calendar.num_rows == (5, 5)
    forged = [file | {"spans": spans} for file, spans in zip(plain, of_files, strict=True)]
    with pytest.raises(ValueError, match=r"train: .*(parquet has 5 rows, and spans of|the rows belong to spans)"):
        begun_in({"train": split | ({"spans": names} if names else {}) | {"files": forged}})
