"""The table of types: each Arrow type in each role is read with the bits of a plain type, or refused in one line, by
every command alike; and files of one split that have a column in several types."""

import datetime as dt
import uuid
from contextlib import suppress
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, epoch_of, examples_in, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.files import columns_of
from pipeline.data.outside import Outside
from pipeline.data.source import Scoring, Source, layout_of
from pipeline.data.table import TableReader
from pipeline.files.description import kind_named
from pipeline.files.find import named
from pipeline.files.types import fits, key_kind, kind_of
from pipeline.init.look import look_at_files
from pipeline.init.roles import choose_roles
from pipeline.prepare import formats
from pipeline.prepare.parts import span_of
from pipeline.prepare.read import parts
from pipeline.prepare.splits import ByTime, check_split
from pipeline.prepare.stretches import cut_sources
from pipeline.workflow import Category, Metrics, Number

INDEX = pa.int8()
INTEGERS, TEXTS, FLOATS = [3, None, 0, 3], ["b", None, "", "b"], [1.5, None, 0.0, 12.35]
LISTS = [[3, 4], None, [0, 0], [3, 3]]
DAYS = [dt.date(2026, 11, n) for n in (1, 2, 2, 4)]
TIMES = [dt.datetime(2026, 11, n, 18, 30) for n in (1, 2, 2, 4)]
UUIDS = [n and f"{n}-0000-4000-8000-00000000abcd" for n in ("0000000a", None, "0000000b", "0000000a")]
RAW = [text and uuid.UUID(text).bytes for text in UUIDS]


def decimals(values, kind):
    return pa.array([None if v is None else Decimal(str(v)) for v in values], kind)


def extension(kind, values):
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def dictionary(values, kind, index=INDEX, ordered=False):
    different = sorted({v for v in values if v is not None})
    places = pa.array([None if v is None else different.index(v) for v in values], index)
    return pa.DictionaryArray.from_arrays(places, pa.array(different, kind), ordered=ordered)


def runs(values, kind=None):
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 4], pa.int32()), pa.array(values, kind))


INTS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
TYPES = {
    **{str(kind): (pa.array(INTEGERS, kind), INTEGERS) for kind in INTS},
    **{str(kind): (decimals(INTEGERS, kind), INTEGERS)
       for kind in (pa.decimal32(9, 0), pa.decimal64(18, 0), pa.decimal128(20, 0), pa.decimal128(38, 0),
                    pa.decimal256(50, 0))},
    **{str(kind): (decimals(FLOATS, kind), FLOATS)
       for kind in (pa.decimal32(9, 2), pa.decimal64(18, 3), pa.decimal128(38, 9), pa.decimal256(60, 12))},
    **{str(kind): (pa.array(np.asarray(FLOATS, float).astype(kind.to_pandas_dtype()), from_pandas=True),
                   [None if v is None else kind.to_pandas_dtype()(v) for v in FLOATS])
       for kind in (pa.float16(), pa.float32(), pa.float64())},
    "whole double": (pa.array([3.0, None, 0.0, 3.0]), INTEGERS),
    "bool": (pa.array([True, None, False, True]), [1, None, 0, 1]),
    "null": (pa.nulls(4), [None] * 4),
    **{str(kind): (pa.array(TEXTS, kind), TEXTS) for kind in (pa.string(), pa.large_string(), pa.string_view())},
    **{str(kind): (pa.array([v and v.encode() if v is not None else None for v in TEXTS], kind), TEXTS)
       for kind in (pa.binary(), pa.large_binary(), pa.binary_view())},
    "fixed_size_binary": (pa.array([raw and raw[:4] for raw in RAW], pa.binary(4)), [raw and raw[:4] for raw in RAW]),
    "16 bytes": (pa.array(RAW, pa.binary(16)), UUIDS),
    "uuid": (extension(pa.uuid(), RAW), UUIDS),
    "upper-case uuid": (pa.array([text and text.upper() for text in UUIDS]), UUIDS),
    "dictionary of 16 bytes": (dictionary(RAW, pa.binary(16)), UUIDS),
    "list of uuids": (pa.array([[UUIDS[0].upper(), None], None, [], UUIDS[2:]]), [UUIDS[:2], None, [], UUIDS[2:]]),
    "json": (extension(pa.json_(pa.string()), TEXTS), TEXTS),
    "opaque": (extension(pa.opaque(pa.int32(), "a", "b"), INTEGERS), INTEGERS),
    **{f"dictionary {kind} {index}": (dictionary(TEXTS, kind, index, index == pa.int8()), TEXTS)
       for kind, index in ((pa.string(), pa.int8()), (pa.large_string(), pa.uint32()), (pa.string_view(), pa.int64()))},
    "dictionary int": (dictionary(INTEGERS, pa.int16(), pa.uint16()), INTEGERS),
    "dictionary double": (dictionary(FLOATS, pa.float64()), FLOATS),
    "dictionary decimal": (dictionary([None if v is None else Decimal(v) for v in INTEGERS], pa.decimal128(9, 0)),
                           INTEGERS),
    "run-end text": (runs(["b", None, ""]), ["b", "b", None, ""]),
    "run-end view": (runs(["b", None, ""], pa.string_view()), ["b", "b", None, ""]),
    "run-end int": (runs([3, None, 0]), [3, 3, None, 0]),
    **{str(kind): (pa.array(LISTS, kind), LISTS)
       for kind in (pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_view(pa.uint8()),
                    pa.large_list_view(pa.int64()), pa.list_(pa.float64()))},
    "list of views": (pa.array([["b", None], None, [], [""]], pa.list_(pa.string_view())),
                      [["b", None], None, [], [""]]),
    "list of categories": (pa.ListArray.from_arrays([0, 2, 2, 4, 4], dictionary(TEXTS, pa.string())),
                           [["b", None], [], ["", "b"], []]),
    "list of nothing": (pa.array([[None], None, [], []], pa.list_(pa.null())), [[None], None, [], []]),
    **{str(kind): (pa.array(TIMES, pa.timestamp("us")).cast(kind), None)
       for kind in (*(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("us", "Europe/Berlin"),
                    pa.timestamp("s", "UTC"))},
    "date32": (pa.array(DAYS, pa.date32()), None),
    "date64": (pa.array(DAYS, pa.date64()), None),
    **{str(kind): (pa.array([1, 2, 2, 4], kind), None)
       for kind in (pa.time32("s"), pa.time64("us"), pa.duration("ms"))},
    "map": (pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())), None),
    "list of structs": (pa.array([[{"a": 1}]] * 4), None),
    "list of lists": (pa.array([[[1]]] * 4), None),
    "list of times": (pa.array([[t] for t in TIMES]), None),
}  # fmt: skip
"""A column of each type, and the values of the plain column that it must equal where it is read; None: no plain one."""
ROLES = {
    "label": ("label",), "weight": ("weight",), "number": ("number",), "category": ("category", "list"),
    "group": ("group",), "time": ("time",),
}  # fmt: skip
REFUSED_BY_VALUE = (
    "bad values",
    "is not an integer",
    "must be 0 or 1",
    "has no x, so they are in no split",
    "must be given",
)


def outcome(work, *arguments):
    """What a command made of a column, or the line with which it is refused."""
    try:
        return work(*arguments)
    except ValueError as error:
        is_ours = not isinstance(error, pa.ArrowException) and "\n" not in str(error)
        return str(error) if is_ours else f"raw: {error!r}"


def data_with(root, role):
    settings = {"number": {"numbers": (Number(name="x"),)}, "label": {"labels": ("x",)}, "weight": {"weight": "x"},
                "category": {"categories": (Category(name="x"),)}}.get(role, {})  # fmt: skip
    return data_of(root, shuffle_window=0, **settings)


def trained(root, role):
    source = Source(data_with(root, role), 0, metrics=Metrics(group="x" if role == "group" else None))
    if role == "group":
        (block,) = blocks_of(4, 7, 3)
        return source.read(block, ReadBuffer(LIMIT)).groups_N.tolist()
    return [one[2] if role == "category" else one[1] if role == "number" else one[0] for one in epoch_of(source)]


def scored(root, role, kinds):
    data = data_with(root, role)
    source = Source(data, 0, scoring=Scoring((named(root / "train/a.parquet"),), kinds))
    return [one[2 if role == "category" else 1] for one in epoch_of(source, split="test")]


def predicted(root, role, kinds, table):
    data = data_with(root, role)
    columns = [c for c in columns_of(data) if c.setting in ("data.numbers", "data.categories")]
    layout = layout_of(data, kinds)
    blocks = TableReader(columns, kinds, layout).batches(table, 7, Outside("clip"))
    found = [one for block in blocks for one in examples_in(SimpleNamespace(layout=layout), block)]
    return [one[2 if role == "category" else 1] for one in found]


def prepared(root, role):
    path = named(root / "train/a.parquet")
    format = formats.parquet_format(["x:label"] if role == "label" else ["label:label", f"x:{role}"], [path])
    (part,) = parts(cut_sources([path], format, LIMIT)[0], format)
    if role == "time":
        return ByTime("x", test_from=str(part.table.column("x")[1])).of(0, 0, path, part.table).tolist()
    values = part.table.column("x").to_pylist()
    return [v.encode() if isinstance(v, str) else v for v in values]


def drafted(root):
    """Role that `init` chooses for the column."""
    choices = choose_roles(look_at_files([named(root / "train/a.parquet")]), ["label"])
    return next(choice.role for choice in choices if choice.column.name == "x")


@pytest.mark.parametrize("name", TYPES)
def test_all_commands_read_a_type_alike_in_every_role(tmp_path, name):
    column, values = TYPES[name]
    table = pa.table({"label": [0, 1, 0, 1], "c": ["a", "b", "b", "a"], "x": column})
    plain = None if values is None else table.set_column(2, "x", pa.array(values))
    is_file = True
    for root, content in ((tmp_path, table), (tmp_path / "plain", plain)):
        with suppress(NotImplementedError, pa.ArrowException):
            is_file = False
            if content is not None:
                write(root / "train/a.parquet", **dict(zip(content.column_names, content.columns, strict=True)))
            is_file = True
    is_file = (tmp_path / "train/a.parquet").exists() and (tmp_path / "train/a.parquet").stat().st_size > 0
    for role, of_table in ROLES.items():
        good = fits(column.type, *of_table)
        kinds = {"c": "text", "x": str(key_kind(column.type)) if good else "integers"}
        kinds["x"] = kinds["x"].replace("nothing", "integers")
        found = []
        if is_file and role != "time":
            found.append(outcome(trained, tmp_path, role))
        if role in ("number", "category"):
            found.append(outcome(predicted, tmp_path, role, kinds, table))
            found += [outcome(scored, tmp_path, role, kinds)] if is_file else []
        made = outcome(prepared, tmp_path, role) if is_file and role not in ("weight", "group") else None
        if not good:
            assert all(
                isinstance(one, str) and "has type" in one
                for one in [*found, *([made] if is_file else [])]
                if one is not None
            ), (role, found, made)
            continue
        if role == "time":
            assert made is None or isinstance(made, list) or any(words in made for words in REFUSED_BY_VALUE), made
            continue
        if plain is None:
            assert not found
            continue
        want = outcome(trained, tmp_path / "plain", role)
        if isinstance(want, str):
            found.append(want)
            assert all(any(words in one for words in REFUSED_BY_VALUE) for one in found), (role, found)
        else:
            assert all(one == want for one in found), (role, want, found)
            assert made is None or made == outcome(prepared, tmp_path / "plain", role), role
    if is_file:
        chosen = drafted(tmp_path)
        assert chosen == "skip" or isinstance(outcome(prepared, tmp_path, chosen), list)
        assert chosen in ("skip", "time") or isinstance(outcome(trained, tmp_path, chosen), list)


def test_the_fields_of_structs_are_columns_with_dotted_names(tmp_path):
    deep = [{"id": 1, "tags": ["a"], "in": {"y": 0.5}}, None, {"id": 3, "tags": None, "in": None}]
    table = pa.table({"user.id": [7, 8, 9], "x": [1, 2, 3], "user": deep, "label": [0, 1, 0]})
    flat = pa.table({"label": [0, 1, 0], "a": [7, 8, 9], "b": [["a"], None, None], "y": [0.5, None, None]})
    names = {"a": "user.id", "b": "user.tags", "y": "user.in.y"}
    found = []
    for root, content, of in ((tmp_path / "a", flat, {n: n for n in names}), (tmp_path / "b", table, names)):
        write(root / "train/a.parquet", **dict(zip(content.column_names, content.columns, strict=True)))
        categories = tuple(Category(name=of[n], table=n) for n in "ab")
        data = data_of(root, categories=categories, numbers=(Number(name=of["y"], fill=2.0),), shuffle_window=0)
        kinds = {of["a"]: "integers", of["b"]: "lists of text"}
        reader = TableReader(columns_of(data)[1:], kinds, layout := layout_of(data, kinds))
        blocks = reader.batches(content, 7, Outside("clip"))
        found += [[one[1:] for one in epoch_of(Source(data, 0))]]
        found += [[one[1:] for block in blocks for one in examples_in(SimpleNamespace(layout=layout), block)]]
    rows = [[(numbers, keys[0]) for numbers, keys in one] for one in found]
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert [numbers for numbers, _ in rows[0]] == [(0.5,), (2.0,), (2.0,)]
    with pytest.raises(
        ValueError, match=r"'user' \(data.categories\) is a struct.*; name one of its fields, such as 'user.id'"
    ):
        Source(data_of(tmp_path / "b", categories=(Category(name="user"),)), 0)


DRIFT = {
    "integers": [pa.array([1, 300], pa.int32()), pa.array([5], pa.uint8()), pa.array([1 << 40])],
    "nothing": [pa.nulls(2), pa.array(["a"]), pa.array(["a"]).dictionary_encode()],
    "text": [pa.array(["a", "b"]), pa.array(["c"], pa.large_string()), pa.array(["d"], pa.string_view())],
    "ids as doubles": [pa.array([3.0, None]), pa.array([3]), pa.nulls(1)],
    "lists": [pa.array([[1], []]), pa.nulls(1), pa.array([[2.0, 3.0]]), pa.array([[None]], pa.list_(pa.null()))],
    "not there": [None, pa.array([4, None]), None],
}
"""Columns of one category in the files of a split."""


@pytest.mark.parametrize("name", DRIFT)
def test_files_that_differ_in_type_are_read_alike_in_any_order(tmp_path, name):
    columns = DRIFT[name]
    kind = pa.list_(pa.int64()) if name == "lists" else pa.string() if name in ("nothing", "text") else pa.int64()
    whole = [[None] * (2 - (n > 0)) if c is None else c.to_pylist() for n, c in enumerate(columns)]
    for turn, order in enumerate(permutations(range(len(columns)))):
        root, plain = tmp_path / f"{turn}", tmp_path / f"{turn} plain"
        for place, n in enumerate(order):
            rows = {"label": [0] * len(whole[n])}
            write(plain / f"train/{place}.parquet", **rows, c=pa.array(whole[n], kind))
            write(root / f"train/{place}.parquet", **rows, **({} if columns[n] is None else {"c": columns[n]}))
        source, twin = (Source(data_of(one, shuffle_window=0), 0) for one in (root, plain))
        assert epoch_of(source) == epoch_of(twin)
        assert kind_named(source.identity["train"].types["c"]) == kind_of(kind)
        assert len(source.notes) == (name == "not there")
        assert all("column 'c' is missing in 2 of 3 files" in note for note in source.notes)
        paths = [named(path) for path in sorted((root / "train").iterdir())]
        format = formats.parquet_format(["label:label", "c:category"], paths)
        made = [part.table for piece in cut_sources(paths, format, LIMIT) for part in parts(piece, format)]
        assert pa.concat_tables(made).column("c").to_pylist() == [v for n in order for v in whole[n]]
        assert look_at_files(paths).sample.num_rows == len(pa.concat_tables(made))


@pytest.mark.parametrize("others", [(pa.array([1.0]), pa.array(["a"])), (pa.array([1]), pa.array([[1]]))])
def test_types_of_other_values_are_refused_with_both_files(tmp_path, others):
    for first, second in (others, others[::-1]):
        for name, column in (("a", first), ("b", second)):
            write(tmp_path / f"train/{name}.parquet", label=[0], c=column)
        paths = [named(path) for path in sorted((tmp_path / "train").iterdir())]
        for work in (
            lambda: Source(data_of(tmp_path), 0),
            lambda: formats.parquet_format(["*:category", "label:label"], paths),  # noqa: B023
        ):
            with pytest.raises(ValueError, match=r"b.parquet: column 'c'.*a.parquet; write .*one type in all files"):
                work()


def test_a_column_that_no_file_of_a_split_has_is_refused(tmp_path):
    write(tmp_path / "train/a.parquet", label=[0], c=[1])
    for name in "ab":
        write(tmp_path / f"test/{name}.parquet", label=[0], d=[1])
    with pytest.raises(ValueError, match=r"test/a.parquet: column 'c' \(data.categories\) is missing"):
        Source(data_of(tmp_path, test=("test",)), 0)
    write(tmp_path / "train/b.parquet", c=[1])
    with pytest.raises(ValueError, match=r"train/b.parquet: column 'label' \(data.labels\) is missing"):
        Source(data_of(tmp_path), 0)


@pytest.mark.parametrize(
    "kind",
    [*(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"),
     pa.timestamp("ms", "Europe/Berlin"), pa.date32(), pa.date64()],
)  # fmt: skip
def test_rows_are_divided_by_times_of_any_unit_and_zone(tmp_path, kind):
    times = pa.array(TIMES, pa.timestamp("us")).cast(kind, safe=False)
    write(tmp_path / "a.parquet", label=[0, 1, 0, 1], x=times)
    path = named(tmp_path / "a.parquet")
    format = formats.parquet_format(["label:label", "x:time"], [path])
    (part,) = parts(cut_sources([path], format, LIMIT)[0], format)
    own = part.table.column("x")[1].cast(pa.string()).as_py()
    for text in (own, "2026-11-02", *(["2026-11-02T10:00:00"] if pa.types.is_timestamp(kind) else [])):
        split = ByTime("x", validation_from=text, test_from="2026-11-03")
        check_split(split, format.schema, [path])
        assert split.of(0, 0, path, part.table).tolist() == [0, 1, 1, 2]
    least, greatest = span_of(part.table.column("x"))
    assert (least[:10], greatest[:10]) == ("2026-11-01", "2026-11-04")
    with pytest.raises(ValueError, match=r"'soon' is no .*, written 2026-11-24"):
        ByTime("x", test_from="soon").parsed("soon", format.schema.field("x").type)


PAGE = Path(__file__).parents[2] / "docs/data_types.md"
SHOWN = {
    "int8 to int64, uint8 to uint64": [pa.int8(), pa.int64(), pa.uint8(), pa.uint64()],
    "float16, float32, float64": [pa.float16(), pa.float32(), pa.float64()],
    "bool": [pa.bool_()],
    "decimal without a fraction": [pa.decimal32(9, 0), pa.decimal128(38, 0)],
    "decimal with a fraction": [pa.decimal64(18, 2), pa.decimal256(40, 2)],
    "string, binary, large or as views": [pa.string(), pa.large_binary(), pa.string_view(), pa.binary_view()],
    "binary of a fixed size, UUID, JSON": [pa.binary(16), pa.uuid(), pa.json_(pa.string())],
    "dictionary of integers": [pa.dictionary(pa.int8(), pa.int64())],
    "dictionary of text": [pa.dictionary(pa.uint32(), pa.string()), pa.dictionary(pa.int8(), pa.string_view())],
    "run-end encoded integers": [pa.run_end_encoded(pa.int32(), pa.int64())],
    "lists, large, of a fixed size, or as views": [
        pa.list_(pa.int32()), pa.large_list(pa.int64()), pa.list_(pa.int64(), 3), pa.list_view(pa.int64())],
    "timestamp of any unit and zone, date32, date64": [
        pa.timestamp("s"), pa.timestamp("ns", "UTC"), pa.date32(), pa.date64()],
    "time32, time64, duration": [pa.time32("s"), pa.time64("us"), pa.duration("s")],
    "map, list of structs, list of lists": [
        pa.map_(pa.string(), pa.int64()), pa.list_(pa.struct({"a": pa.int64()})), pa.list_(pa.list_(pa.int64()))],
}  # fmt: skip
COLUMNS = [("label", "weight", "number"), ("category", "group"), ("list",), ("time",)]


def test_the_page_of_types_has_the_table():
    lines = []
    for name, kinds in SHOWN.items():
        kind = " or ".join(sorted({kind_of(kind) or "refused" for kind in kinds}))
        marks = [{all(fits(kind, role) for role in roles) for kind in kinds} for roles in COLUMNS]
        assert all(len(mark) == 1 for mark in marks)
        whole = " (whole)" if kind == "numbers" else ""
        said = [("yes" + whole * (n == 1)) if mark.pop() else "no" for n, mark in enumerate(marks)]
        lines.append(f"| {' | '.join([name, kind, *said])} |")
    assert "\n".join(lines) in PAGE.read_text(), "\n" + "\n".join(lines)
