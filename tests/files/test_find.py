"""Which files a folder, a pattern or a name gives, and in which order: the same for every command."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.files.find import check_once, find, matches_name, named, natural_order

MARK = b"PAR1"
FOLDERS = {
    "Dask's parts": (["part.10.parquet", "part.2.parquet"], ["part.2.parquet", "part.10.parquet"]),
    "a failed job of Spark": (
        ["_temporary/0/task/part-1.parquet", "_SUCCESS", "part-0.parquet", ".part-0.parquet.crc", "_metadata"],
        ["part-0.parquet"],
    ),
    "notebooks and macOS": ([".ipynb_checkpoints/a-checkpoint.parquet", "._a.parquet", "a.parquet"], ["a.parquet"]),
    "days": (
        ["day=10/b/1.parquet", "day=9/0.parquet", "day=10/a.parquet"],
        ["day=9/0.parquet", "day=10/a.parquet", "day=10/b/1.parquet"],
    ),
    "other files of a project": (["a.parquet", "README.md", "LICENSE", "notes.txt", "schema.json"], ["a.parquet"]),
    "Spark's text": (["part-1.csv.gz", "part-0.csv.gz", "_SUCCESS", "README"], ["part-0.csv.gz", "part-1.csv.gz"]),
    "text without a suffix": (["_SUCCESS", "part-10", "part-09", ".part-10.crc"], ["part-09", "part-10"]),
    "Criteo's days": (["day_10.gz", "day_9.gz"], ["day_9.gz", "day_10.gz"]),
    "lines of JSON": (["b.jsonl.zst", "a.ndjson"], ["a.ndjson", "b.jsonl.zst"]),
    "other cases of letters": (["B.PARQUET", "a.Parquet"], ["B.PARQUET", "a.Parquet"]),
}  # fmt: skip


def make(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(MARK)


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_gives_its_data_in_the_order_of_numbers(tmp_path, kind):
    names, expected = FOLDERS[kind]
    make(tmp_path / "log", *names)
    found = find([str(tmp_path / "log")]).files
    assert [file.below for file in found] == expected
    assert [file.place for file in found] == [f"{tmp_path}/log/{name}" for name in expected]
    # Patterns hide the same names.
    patterns = find([f"{tmp_path}/lo?", f"{tmp_path}/log/**"]).files
    assert sorted(file.place for file in patterns) == sorted(2 * [file.place for file in found])


def test_what_a_name_or_a_pattern_names_itself_is_not_hidden(tmp_path):
    make(tmp_path, "_old/.x/_a.parquet", "_old/b.parquet")
    assert [file.below for file in find([f"{tmp_path}/_old/.x/_a.parquet"]).files] == ["_a.parquet"]
    assert [file.below for file in find([f"{tmp_path}/_old"]).files] == ["b.parquet"]
    assert [file.below for file in find([f"{tmp_path}/_o*/.*/_*"]).files] == ["_old/.x/_a.parquet"]


def test_a_path_may_be_written_as_an_address_of_a_file(tmp_path):
    make(tmp_path, "a folder/1.parquet", "a folder/2.parquet")
    uri = (tmp_path / "a folder").as_uri()
    assert find([uri]) == find([str(tmp_path / "a folder")])
    assert find([f"{uri}/*.parquet"]) == find([f"{tmp_path}/a folder/*.parquet"])
    with pytest.raises(ValueError, match="looked for /nowhere"):
        find(["file:///nowhere"])


def test_sources_are_relative_to_the_root_and_keep_their_order(tmp_path):
    make(tmp_path, "b/1.parquet", "a/1.parquet")
    assert [file.place for file in find(["b", "a"], tmp_path).files] == [f"{tmp_path}/{n}/1.parquet" for n in "ba"]


@pytest.mark.parametrize("folder", ["log [v2]", "what?", "*", "a/[b]"])
def test_a_folder_may_have_wildcards_in_its_name(tmp_path, folder):
    make(tmp_path, f"{folder}/a[1].parquet", f"{folder}/b.parquet", "log v/c.parquet", "whatx/d.parquet")
    for source, names in (("*", "ab"), ("a[[]1].parquet", "a"), ("a[[]*", "a"), ("[b-d].parquet", "b")):
        found = find([source], tmp_path / folder).files
        assert [file.name[0] for file in found] == [*names]
        assert found == find([f"{tmp_path / folder}/{source}"]).files
        assert [file.below for file in found] == [file.name for file in found]


REFUSED = {
    "nothing": (
        [],
        "log",
        "data.train: 'log' matches no Parquet file (looked for {root}/log); correct the pattern, or",
    ),
    "no data": (["log/_a.parquet"], "log", "matches no Parquet file (looked for {root}/log); correct"),
    "text": (["log/a.csv"], "log", "matches no Parquet file (looked for {root}/log), but has a.csv; convert text to"),
    "one of two": (["a1/x.parquet", "a2/x.csv"], "a*", "also matches {root}/a2, a folder without Parquet files"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_source_without_data_is_refused_with_its_place(tmp_path, kind):
    names, pattern, said = REFUSED[kind]
    make(tmp_path, *names)
    with pytest.raises(ValueError, match="matches") as caught:
        find([pattern], tmp_path, "data.train", "Parquet")
    assert said.format(root=tmp_path) in str(caught.value)


def test_a_folder_of_text_and_of_json_is_refused_with_both(tmp_path):
    make(tmp_path, "log/a.csv", "log/b.json")
    with pytest.raises(ValueError, match=r"text and of JSON, such as .*a\.csv and .*b\.json"):
        find([str(tmp_path / "log")])
    assert [file.name for file in find([str(tmp_path / "log")], form="text").files] == ["a.csv"]


def test_a_folders_link_to_another_of_its_files_is_left_out(tmp_path):
    for name in ("a.parquet", "_staged/c.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "latest.parquet").symlink_to("a.parquet")
    (tmp_path / "b.parquet").symlink_to("_staged/c.parquet")
    assert [file.name for file in find([str(tmp_path)]).files] == ["a.parquet", "b.parquet"]


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
def test_a_file_named_twice_is_refused_with_both_names(tmp_path, link):
    make(tmp_path, "a.parquet")
    other = tmp_path / ("b.parquet" if link else "a.parquet")
    if link:
        link(tmp_path / "a.parquet", other)
    with pytest.raises(ValueError, match="are one file") as caught:
        check_once({"data.train": [named(tmp_path / "a.parquet")], "data.test": [named(other)]})
    assert f"{tmp_path}/a.parquet (data.train) and {other} (data.test) are one file" in str(caught.value)


NAMES = st.text("ab.-_=/019", min_size=1, max_size=12)


@given(st.lists(NAMES, unique=True, max_size=8))
@examples(40, 1000)
def test_names_of_equal_lengths_of_numbers_keep_their_order(names):
    """So the fingerprint of a folder whose names have leading zeros is that of the order of text."""
    padded = ["/".join(natural_order(name)[0]) for name in names]
    by_parts = sorted(padded, key=lambda name: (name.split("/"), name))
    assert sorted(padded, key=natural_order) == by_parts
    assert sorted(names, key=natural_order) == sorted(names[::-1], key=natural_order)


@given(st.lists(st.integers(0, 10**30), unique=True, max_size=8), NAMES, NAMES)
@examples(40, 1000)
def test_numbers_of_names_are_ordered_by_value(numbers, before, after):
    names = [f"{before}x{number}x{after}" for number in numbers]
    assert sorted(names, key=natural_order) == [f"{before}x{number}x{after}" for number in sorted(numbers)]


def test_a_shell_pattern_matches_a_name_or_the_end_of_a_path():
    file = named(Path("/log/day=1/a.csv"))
    assert all(matches_name(file, one) for one in ("a.csv", "*.csv", "day=1/*", "/log/day=1/a.csv", "log/*"))
    assert not any(matches_name(file, one) for one in ("y=1/*", "b.csv", "day=1", "lo*"))
