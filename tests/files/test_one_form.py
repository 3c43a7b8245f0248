"""A value has one form, whatever wrote it (UUIDs, INT96, whole numbers of one sign); files without rows are none."""

import gzip
import re
import uuid
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.parquet_files import data_of, epoch_of, examples_in, write
from support.depth import examples

from pipeline.data.files import columns_of
from pipeline.data.identity import as_json, begun_in
from pipeline.data.outside import Outside
from pipeline.data.source import Source, layout_of
from pipeline.data.table import TableReader
from pipeline.features.settings import Cross, Lookup, Rare
from pipeline.features.side_files import COLUMNS
from pipeline.files.description import Description
from pipeline.files.find import DataFile, named
from pipeline.files.flat import open_file
from pipeline.files.uuids import in_lower_case
from pipeline.init.look import look_at_files
from pipeline.kernels.hashing import hash_bytes_reference, table_salt
from pipeline.preflight.setup import remarks
from pipeline.prepare.formats import parquet_format
from pipeline.prepare.main import main as prepare
from pipeline.serving.scored_files import types_of
from pipeline.workflow import Category

UUIDS = [str(uuid.UUID(int=n * 0xABCDEF << 64)) if n else None for n in (1, 0, 2, 1, 3)]
UPPER = [text and text.upper() for text in UUIDS]
RAW = [text and uuid.UUID(text).bytes for text in UUIDS]
FORMS = {
    "upper-case text": pa.array(UPPER),
    "some upper": pa.array([UUIDS[0], *UPPER[1:]], pa.large_binary()),
    "dictionary": pa.array(UPPER).dictionary_encode(),
    "16 bytes": pa.array(RAW, pa.binary(16)),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array(RAW, pa.binary(16))),
}
FEATURES = (
    Cross(columns=("c", "n"), name="crossed"), Lookup(column="c", file="side.parquet", key="k", take={"v": "looked"}),
    Rare(column="c", at_least=2, counts="counts.parquet"),
)  # fmt: skip


def log_of(root, values):
    """A log with these UUIDs, once in single values and once in lists, and the files that its features read."""
    lists = pa.ListArray.from_arrays(
        [0, 2, 2, 5, 5, 5], values.storage if isinstance(values.type, pa.UuidType) else values
    )
    write(root / "train/a.parquet", label=[0, 1, 0, 1, 0], n=[1, 2, 3, 4, 5], c=values, l=lists)
    write(root / "side.parquet", k=values.take(pa.array([0, 2])), v=[7, 8])
    counts = pa.table({"value": values.take(pa.array([0, 2])), "count": [2, 1]})
    pq.write_table(counts.replace_schema_metadata({COLUMNS: b'["c"]'}), root / "counts.parquet")
    categories = tuple(Category(name=name) for name in ("c", "l", "crossed", "looked"))
    return data_of(root, categories=categories, features=FEATURES, shuffle_window=0)


@pytest.mark.parametrize("form", FORMS)
def test_a_uuid_has_the_keys_of_its_lower_case_text(tmp_path, form):
    lower, other = (log_of(tmp_path / name, values) for name, values in (("a", pa.array(UUIDS)), ("b", FORMS[form])))
    found = Source(other, 0)
    assert epoch_of(found) == epoch_of(Source(lower, 0))
    # The state of a run of earlier versions lacks the field, and the run keeps its types and keys.
    kept = {split: dict(of) for split, of in as_json(found.identity).items()}
    assert all(of.pop("canonical") for of in kept.values())
    former = Source(other, 0, begun=begun_in(kept))
    own = FORMS[form].to_pylist()[0]
    content = own.bytes if isinstance(own, uuid.UUID) else own.encode() if isinstance(own, str) else own
    assert epoch_of(former)[0][2][0] == (hash_bytes_reference(content, int(table_salt("c"))),)
    assert ("binary" in former.identity["train"].types["c"]) == (
        content != own.encode() if isinstance(own, str) else True
    )
    assert as_json(former.identity)["train"].keys() == kept["train"].keys()
    kinds = {"c": "text", "l": "lists of text", "crossed": "integers", "looked": "integers"}
    for source in (found, former):
        known, layout = Description(canonical=source is found), layout_of(other, kinds)
        reader = TableReader(columns_of(other, description=known)[1:], kinds, layout, other, known)
        blocks = reader.batches(pq.read_table(tmp_path / "b/train/a.parquet"), 7, Outside("clip"))
        made = [one[2] for block in blocks for one in examples_in(SimpleNamespace(layout=layout), block)]
        assert made == [one[2] for one in epoch_of(source)]


@examples(24, 600)
@given(
    st.lists(st.none() | st.sampled_from([*UUIDS, *UPPER]) | st.text("0aAgG-", min_size=34, max_size=37)),
    st.integers(0, 3),
)
def test_only_uuids_become_lower_case(texts, begin):
    want = [
        re.sub("^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$", lambda found: found[0].lower(), text or "")
        for text in texts
    ]
    for kind in (pa.string(), pa.large_string()):
        found = in_lower_case(pa.array(texts, kind).slice(begin))
        found.validate(full=True)
        assert found.fill_null("").to_pylist() == want[begin:]
        assert found.is_null().to_pylist() == [text is None for text in texts[begin:]]


NEVER = pa.array([253402214400000000, -62135596800000000, 1, None], pa.timestamp("us"))
TIMES = {
    "INT96": (NEVER, "0001-01-01", "9999-12-31"),
    "us": (NEVER, "0001-01-01", "9999-12-31"),
    "zoned": (NEVER.cast(pa.timestamp("us", "UTC")), "0001-01-01", "9999-12-31"),
    "ns": (pa.array([1, 1_700_000_000_000_000_001, -2000, None], pa.timestamp("ns")), "1969-12-31", "2023-11-14"),
    "beyond": (pa.array([1 << 62, -(1 << 62), 0, None], pa.timestamp("us")), "0001-01-01", "9999-12-31"),
    "date32": (pa.array([1 << 30, -(1 << 30), 0, None], pa.date32()), "0001-01-01", "9999-12-31"),
}
"""Columns of times, and their first and last day as `init` shows them."""


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("name", TIMES)
def test_far_and_fine_times_stay_what_they_are(tmp_path, name, statistics):
    column, *ends = TIMES[name]
    options = {"use_deprecated_int96_timestamps": name == "INT96", "write_statistics": statistics}
    pq.write_table(pa.table({"t": column}), path := tmp_path / "a.parquet", **options)
    with open_file(named(path)) as file:
        assert file.read_row_group(0, ["t"]).column(0).combine_chunks().equals(column)
    (found,) = look_at_files([named(path)]).columns
    assert [str(end)[:10] for end in (found.minimum, found.maximum)] == ends
    # A run of earlier versions has the type that it began with.
    with open_file(DataFile(str(path), canonical=False)) as file:
        assert file.schema_arrow.field("t").type == (pa.timestamp("ns") if name == "INT96" else column.type)


WHOLE = {
    "unsigned": (7, 2**64 - 1, pa.uint64()), "signed": (-1, 2**63 - 1, pa.int64()), "both": (-1, 2**63, None),
    "alike": (0, 5, pa.uint64()),
}  # fmt: skip


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_a_split_have_one_sign(tmp_path, name, statistics):
    low, high, kind = WHOLE[name]
    (tmp_path / "train").mkdir()
    for file, value, own in (("a", low, pa.int64()), ("b", high, pa.uint64())):
        table = pa.table(
            {"label": [0, 1], "c": pa.array([value, None], own), "l": pa.array([[value], []], pa.list_(own))}
        )
        pq.write_table(table, tmp_path / f"train/{file}.parquet", write_statistics=statistics)
    paths = [named(path) for path in sorted((tmp_path / "train").iterdir())]
    places = {
        "run": lambda: Source(data_of(tmp_path), 0),
        "run of lists": lambda: Source(data_of(tmp_path, categories=(Category(name="l"),)), 0),
        "prepare": lambda: parquet_format(["label:label", "c:category"], paths).schema.field("c").type,
        "init": lambda: look_at_files(paths).sample.column("c").type,
    }
    assert types_of([SimpleNamespace(source=path) for path in paths], ["c"])["c"] == kind
    refused = rf"b.parquet: column '[cl]' has {high}, and -1 in .*a.parquet: .* as text"
    for place, work in places.items():
        if kind is None and place == "init":
            # It leaves such a column out.
            (note,) = [column.note for column in look_at_files(paths).columns if column.name == "c"]
            assert re.search(refused, note)
        elif kind is None:
            with pytest.raises(ValueError, match=refused):
                work()
        else:
            assert work() == kind or "run" in place, place


ROWS = {"label": [0, 1, 1], "c": [1, 2, 3]}
HEAD = b"label,c\n"


def contents(out):
    return [path.read_bytes() for path in sorted((out / "train").glob("*"))]


def made(form, folder, *options):
    out = folder.with_name(f"{folder.name}-out")
    columns = ["--schema", "label:label", "c:category:int64" if form == "csv" else "c:category"]
    code = prepare([form, str(folder), "--out", str(out), *columns, "--split", "ratio:test=0.2,seed=1", *options])
    return code, contents(out) if code == 0 else None


@pytest.mark.parametrize("places", [("0",), ("2",), ("0", "2")])
def test_parquet_parts_without_rows_add_nothing(tmp_path, places):
    for folder in (tmp_path / "a", tmp_path / "b"):
        for name in ("1", "3"):
            write(folder / f"{name}.parquet", **ROWS)
    for name in places:
        write(tmp_path / "a" / f"{name}.parquet", **{n: pa.array([], pa.int64()) for n in ROWS})
    sources = [Source(data_of(tmp_path, train=(name,)), 1) for name in "ab"]
    assert epoch_of(sources[0]) == epoch_of(sources[1])
    assert made("parquet", tmp_path / "a") == made("parquet", tmp_path / "b")


@pytest.mark.parametrize("rest", [b"", HEAD, HEAD[:-1]], ids=["no bytes", "a header", "a header without its end"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_text_parts_without_rows_add_nothing(tmp_path, suffix, rest):
    pack = gzip.compress if suffix.endswith("gz") else bytes
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        for name in ("1", "3"):
            (folder / f"{name}{suffix}").write_bytes(pack(HEAD + b"0,1\n1,2\n" * 40))
    for name in ("0", "2", "4"):
        (tmp_path / "a" / f"{name}{suffix}").write_bytes(pack(rest))
    assert made("csv", tmp_path / "a") == made("csv", tmp_path / "b")


def test_a_line_without_its_header_is_no_part_without_rows(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/1.csv").write_bytes(HEAD + b"0,1\n")
    (tmp_path / "a/2.csv").write_bytes(b"1,2\n")
    assert made("csv", tmp_path / "a")[0] == 2
    assert "2.csv: has no header" in capsys.readouterr().err


def test_a_split_without_rows_gets_a_line(tmp_path):
    write(tmp_path / "train/a.parquet", **ROWS)
    write(tmp_path / "none/a.parquet", **{n: pa.array([], pa.int64()) for n in ROWS})
    (tmp_path / "train/notes.txt").touch()
    data = data_of(tmp_path, validation=("none",))
    said = list(remarks(data, Source(data, 0).num_examples))
    assert said == [
        "data.train: next to Parquet 1 other files are left out: notes.txt",
        "data.validation: its files have no rows, so that nothing is evaluated on them; name files that have",
    ]


def test_a_source_whose_parts_are_all_without_rows_is_refused(tmp_path, capsys):
    pq.write_table(pa.table(ROWS).slice(0, 0), tmp_path / "a.parquet")
    assert prepare(["parquet", str(tmp_path), "--out", str(tmp_path / "out"), "--schema", "label:label"]) == 2
    assert "a.parquet: has no rows" in capsys.readouterr().err
