"""Each feature makes of an example what its plain definition does, whatever the type and form of the column."""

import json
import math
from datetime import UTC, date, datetime
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples
from support.oracle.features import RareValues, hashed, with_made

from pipeline.features.derived import Derived
from pipeline.features.settings import Bucket, Calendar, Cross, Lookup, Rare, Standardize
from pipeline.features.side_files import COLUMNS
from pipeline.files.description import Description
from pipeline.kernels.hashing import shared_key
from pipeline.kernels.key_table import fill_set, replace_keys, set_size

NUMBERS = st.one_of(
    st.none(), st.just(math.nan), st.integers(-5, 12).map(float), st.floats(-1e6, 1e6),
    st.sampled_from([0.1, 1e30, -1e30, float(1 << 40)]),
)  # fmt: skip
TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "b", "é", "a longer text than eight bytes"]))
BUCKETS = (
    Bucket(column="x", name="made", edges=(-0.5, 0.1, 3.0)),
    Bucket(column="x", name="made", edges=(2.0,), missing=3.0),
    Bucket(column="x", name="made", edges=(-2.0, 2.0), missing=0.1),
    Bucket(column="x", name="made", squared_log=True, missing=0.0),
)
SCALES = (
    Standardize(column="x", name="made", mean=0.3, std=2.5),
    Standardize(column="x", name="made", mean=1.0, std=0.1, clip=4.0),
)


def made(features, columns, root="."):
    """Values of all columns that the features make of a table."""
    table, derived = pa.table(columns), Derived(features, root, Description())
    schema = derived.schema(table.schema, "the table")
    names = [name for name in schema.names if name in derived]
    found = derived.columns(names, table.column, "the table")
    assert [found[name].type for name in names] == [schema.field(name).type for name in names]
    return {name: found[name].to_pylist() for name in names}


def expected(features, rows, root="."):
    data = SimpleNamespace(features=features, root=root)
    names = [name for feature in features for name in feature.makes]
    return {name: [row[name] for row in with_made(data, [dict(row) for row in rows])] for name in names}


@examples(24, 600)
@given(st.lists(NUMBERS, max_size=20), st.sampled_from(BUCKETS + SCALES), st.sampled_from(["double", "float"]))
def test_numbers_become_what_plain_loops_make(values, feature, kind):
    column = pa.array(values, kind)
    rows = [{"x": value} for value in column.to_pylist()]
    assert made([feature], {"x": column}) == expected([feature], rows)


@pytest.mark.parametrize("feature", [*BUCKETS, *SCALES], ids=lambda f: f.kind)
def test_a_number_is_the_same_in_every_type(feature):
    whole = [None, 0, 1, 2, 3, 7, 255]
    found = made([feature], {"x": pa.array(whole, pa.int64())})
    for kind in (pa.uint8(), pa.int16(), pa.float32(), pa.float64(), pa.dictionary(pa.int8(), pa.int64())):
        assert made([feature], {"x": pa.array(whole, kind)}) == found
    parts = np.array([0.1, 2.7, -3.3], np.float32)
    assert made([feature], {"x": parts}) == made([feature], {"x": parts.astype(np.float64)})
    assert made([feature], {"x": parts}) == made([feature], {"x": np.array([0.1, 2.7, -3.3])})
    nothing = [None] * len(parts)
    assert made([feature], {"x": pa.array(nothing)}) == {"made": nothing}


def test_the_scale_of_logarithms_is_that_of_their_definition():
    feature = Standardize(column="x", name="made", mean=2.0, std=1.5, log1p=True)
    values = [0.0, 1.0, -7.0, 1e6]
    found = made([feature], {"x": values})["made"]
    assert found == pytest.approx([(math.copysign(math.log1p(abs(x)), x) - 2) / 1.5 for x in values], rel=1e-6)


def test_squared_logarithms_are_those_of_every_number():
    values = np.concatenate([np.arange(-3, 60_000), np.geomspace(6e4, 1e18, 40_000).astype(np.int64)])
    feature = Bucket(column="x", name="made", squared_log=True)
    assert made([feature], {"x": values})["made"] == [
        math.floor(math.log(x) ** 2) if x > 2 else x for x in values.tolist()
    ]


@examples(24, 600)
@given(st.lists(st.tuples(TEXTS, st.one_of(st.none(), st.integers(-3, 3)), TEXTS), max_size=15))
def test_crosses_are_hashes_of_all_their_values(rows):
    features = [Cross(columns=("a", "b"), name="ab"), Cross(columns=("ab", "c"), name="abc")]
    a, b, c = ([row[n] for row in rows] for n in range(3))
    columns = {"a": pa.array(a, pa.string()), "b": pa.array(b, pa.int8()), "c": pa.array(c, pa.large_string())}
    plain = expected(features, [dict(zip("abc", row, strict=True)) for row in rows])
    assert made(features, columns) == plain
    as_dictionary = columns | {"a": columns["a"].dictionary_encode(), "b": columns["b"].cast(pa.int64())}
    assert made(features, as_dictionary) == plain


def test_the_order_of_crossed_columns_counts():
    columns = {"a": ["x", "y"], "b": ["y", "x"]}
    both = made([Cross(columns=("a", "b"), name="ab"), Cross(columns=("b", "a"), name="ba")], columns)
    assert both["ab"] != both["ba"]
    assert both["ab"] == both["ba"][::-1]


@examples(16, 400)
@given(
    st.lists(st.one_of(st.none(), st.integers(-(10**9), 2_140_000_000)), max_size=12),
    st.sampled_from(["s", "ms", "us"]),
    st.sampled_from([None, "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/New_York"]),
)
def test_parts_of_times_are_those_of_their_zone(seconds, unit, zone):
    names = ("hour", "weekday", "weekend", "day", "month", "minute")
    feature = Calendar(column="t", take={name: f"the_{name}" for name in names}, zone=zone)
    column = pa.array(seconds, pa.timestamp("s", "UTC")).cast(pa.timestamp(unit, "UTC"))
    found = made([feature], {"t": column})
    assert found == expected([feature], [{"t": time} for time in column.cast(pa.timestamp("us", "UTC")).to_pylist()])
    as_integers = feature.model_copy(update={"unit": unit})
    assert made([as_integers], {"t": column.cast(pa.int64())}) == found


@pytest.mark.parametrize(("form", "last", "none"), [
    ("%F", "2024-2-29", "2023-02-29"), ("%y%m%d%H", "26043023", "26043100"),
    ("%d %b %Y %H:%M%z", "31 Jan 2026 23:59-1100", "31 Sep 2026 00:00-1100"),
])  # fmt: skip
def test_a_day_that_its_month_does_not_have_is_refused(form, last, none):
    with pytest.raises(ValueError, match=f"column 't': '{none}' is no time in the form"):
        made([Calendar(column="t", take={"day": "day"}, form=form)], {"t": [last, None, none]})


def test_parts_of_text_dates_and_local_times_are_as_written():
    texts, take = ["14102105", None, "14122523"], {"hour": "hour", "weekday": "weekday"}
    early = Calendar(column="t", take={"month": "month"}, form="%y%m%d%H")
    assert made([early], {"t": pa.array([9010100])}) == {"month": [1]}, "2009, of which the zero was lost"
    feature = Calendar(column="t", take=take, form="%y%m%d%H")
    found = made([feature], {"t": texts})
    assert found == {"hour": [5, None, 23], "weekday": [1, None, 3]} == expected([feature], [{"t": t} for t in texts])
    assert made([feature], {"t": pa.array([14102105, None, 14122523])}) == found
    plain = Calendar(column="t", take=take)
    local = [datetime(2014, 10, 21, 5), None, datetime(2014, 12, 25, 23)]
    assert made([plain], {"t": pa.array(local, pa.timestamp("ms"))}) == found
    days = pa.array([date(2014, 10, 21), None, date(2014, 12, 25)])
    assert made([plain], {"t": days}) == {"hour": [0, None, 0], "weekday": found["weekday"]}
    assert made([plain], {"t": pa.array(local, pa.timestamp("ns", "UTC"))}) == found
    assert datetime(2014, 10, 21, tzinfo=UTC).weekday() == 1


@pytest.mark.parametrize("kind", [pa.int32(), pa.string(), pa.dictionary(pa.int16(), pa.string())])
def test_a_lookup_is_a_join_by_a_dictionary(kind, tmp_path):
    rng = np.random.default_rng(3)
    keys = pa.array(rng.permutation(50)[:30]).cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
    brands = pa.array([f"b{n % 7}" for n in range(30)], mask=np.arange(30) % 9 == 0)
    pq.write_table(pa.table({"id": keys, "brand": brands, "price": rng.random(30)}), tmp_path / "items.parquet")
    take = {"brand": "item_brand", "price": "item_price"}
    feature = Lookup(column="item", file="items.parquet", key="id", take=take)
    items = pa.array([*rng.integers(0, 60, 40).tolist(), None]).cast(pa.string() if kind != pa.int32() else kind)
    items = items.dictionary_encode() if pa.types.is_dictionary(kind) else items
    found = made([feature], {"item": items}, tmp_path)
    assert found == expected([feature], [{"item": item} for item in items.to_pylist()], tmp_path)
    assert None in found["item_price"]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_whole_floats_have_the_keys_of_integers(kind, tmp_path):
    """Cases: a cross, the column of a lookup, the key of its file, each also if another feature made the floats."""
    whole, ids = pa.array([7, None, -3, 0, 2048]), pa.array([7, -3, 2048])
    part = pa.array([7.0, 0.25]).cast(kind)
    look = Lookup(column="a", file="items.parquet", key="id", take={"of": "of_a"})
    features = [look, Cross(columns=("a", "of_a"), name="x")]
    found = []
    for cast in (pa.int64(), kind):
        as_kind = [np.nan if n is None else n for n in whole.to_pylist()] if cast == pa.float64() else whole
        pq.write_table(
            pa.table({"id": ids.cast(cast), "of": pa.array([1, None, 5]).cast(cast)}), tmp_path / "items.parquet"
        )
        found.append(made(features, {"a": pa.array(as_kind).cast(cast)}, tmp_path))
    assert found[0] == found[1]
    assert found[1]["of_a"] == [1, None, None, None, 5]
    for feature in features:
        with pytest.raises(ValueError, match=r"column 'a' .*, and 0\.25 at row 1 is not an integer"):
            made([look, feature][: 1 + (feature is not look)], {"a": part}, tmp_path)


def write_counts(path, counts, columns=("c",)):
    table = pa.table({"value": list(counts), "count": list(counts.values())})
    pq.write_table(table.replace_schema_metadata({COLUMNS: json.dumps(columns)}), path)


@pytest.mark.parametrize("unseen", [True, False])
@pytest.mark.parametrize("nulls", [True, False])
def test_rare_values_share_the_key_of_their_table(unseen, nulls, tmp_path):
    counts = {f"v{n}": n for n in range(1, 40)}
    write_counts(tmp_path / "c.parquet", counts)
    rule = Rare(column="c", at_least=12, counts="c.parquet", unseen=unseen, nulls=nulls)
    rare = Derived([rule], tmp_path, Description()).rare({"c": "table"})["c"]
    values = [*counts, "never", "seen"]
    keys = np.array([hashed(value, "table") for value in values], np.uint64)
    rare.apply(keys, "text", "column 'c'")
    oracle, shared = RareValues(SimpleNamespace(features=[rule], root=tmp_path)), int(shared_key("table"))
    assert keys.tolist() == [shared if oracle.shares(v, "c") else hashed(v, "table") for v in values]
    assert rare.shared == shared
    assert rare.nulls == nulls == oracle.shares(None, "c")


@examples(24, 600)
@given(st.sets(st.integers(0, 2**64 - 2), max_size=40), st.lists(st.integers(0, 2**64 - 2), max_size=40), st.booleans())
def test_a_set_of_keys_is_a_set(members, others, if_in):
    keys = np.array([*members, *others], np.uint64)
    table = np.empty(set_size(len(members)), np.uint64)
    fill_set(np.array([*members], np.uint64), table)
    plain = [5 if (key in members) == if_in else key for key in keys.tolist()]
    replace_keys(keys, table, if_in, np.uint64(5))
    assert keys.tolist() == plain
