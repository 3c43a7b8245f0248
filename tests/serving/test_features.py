"""One definition of features: a value has one key and one number, in training, in scoring and in a request."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples
from support.http.oip import binary_request, json_request
from support.oracle.reference import key_of

from pipeline.data.buffer import ReadBuffer
from pipeline.data.files import columns_of
from pipeline.data.outside import Outside
from pipeline.data.source import Scoring, Source, layout_of
from pipeline.data.table import TableReader
from pipeline.files.find import named
from pipeline.files.types import kind_of
from pipeline.records import Block
from pipeline.serving.features import kind_of_name
from pipeline.serving.http.request import read_request
from pipeline.serving.served_model import InputSpec
from pipeline.workflow import Category, Data, Number

INTEGERS = (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.uint64())
TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string()))
NUMBERS = (Number(name="x", fill=0.5), Number(name="y", shift=3.0, log1p=True))
INPUTS = (
    InputSpec("x", "FP32", False), InputSpec("y", "FP32", False), InputSpec("number", "INT64", False),
    InputSpec("text", "BYTES", False), InputSpec("numbers", "INT64", True),
    InputSpec("texts", "BYTES", True),
)  # fmt: skip


@st.composite
def tables(draw):
    size = draw(st.integers(1, 12))

    def column(values, kind):
        return pa.array(draw(st.lists(st.none() | values, min_size=size, max_size=size)), kind)

    def integers(kind):
        bits, low = kind.bit_width, 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return st.integers(low, 2 ** min(bits - (low < 0), 63) - 1)

    texts = st.text(st.characters(codec="utf-8"), max_size=9)
    kinds = [draw(st.sampled_from(INTEGERS)), draw(st.sampled_from(TEXTS)), draw(st.sampled_from(INTEGERS))]
    floats = st.floats(0, 1e3, width=32)
    dictionary = pa.types.is_dictionary(kinds[1])
    return pa.table({
        "label": pa.array([0] * size),
        "x": column(floats, pa.float32()),
        "y": column(floats, pa.float32()),
        "number": column(integers(kinds[0]), kinds[0]),
        "text": column(texts, pa.string()).dictionary_encode() if dictionary else column(texts, kinds[1]),
        "numbers": column(st.lists(integers(kinds[2]), max_size=3), pa.list_(kinds[2])),
        "texts": column(st.lists(texts, max_size=3), draw(st.sampled_from([pa.list_, pa.large_list]))(pa.string())),
    })  # fmt: skip


def contents(examples):
    """Numbers and keys, by their bits, and where each list begins."""
    (starts,) = examples.bags
    return examples.numbers_NX.view(np.uint32).tolist(), examples.keys_V.tolist(), starts.tolist()


@given(tables())
@examples(25, 200)
def test_training_scoring_and_requests_have_the_same_keys(table):
    categories = tuple(Category(name=name) for name in ("number", "text", "numbers", "texts"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.parquet"
        pq.write_table(table, file)
        data = Data(
            root=folder, train=("data.parquet",), labels=("label",), numbers=NUMBERS, categories=categories,
            shuffle_window=0,
        )  # fmt: skip
        kinds = {category.name: kind_of(table.schema.field(category.name).type) for category in categories}
        assert kinds == {name: kind_of_name(str(table.schema.field(name).type)) for name in kinds}
        found = []
        for split, scoring in (("train", None), ("test", Scoring((named(file),), kinds))):
            source = Source(data, 1, scoring=scoring)
            block = Block(
                number=0, split=split, epoch=0, first_batch=0, num_batches=1, first_example=0,
                num_examples=len(table), batch_size=len(table), first_step=0, closes_split=False,
            )  # fmt: skip
            found.append(contents(source.read(block, ReadBuffer(1 << 16))))
            source.close()
    columns = [column for column in columns_of(data) if column.setting != "data.labels"]
    names = [spec.name for spec in INPUTS]
    decoded = table.set_column(
        table.schema.names.index("text"), "text", table["text"].cast(pa.string())
    ).select(names)  # fmt: skip
    body, header = binary_request(decoded, INPUTS)
    requests = (
        table.select(names),
        read_request(json_request(decoded, INPUTS), None, INPUTS, ()).table,
        read_request(body, header, INPUTS, ()).table,
    )
    for request in requests:
        reader = TableReader(columns, kinds, layout_of(data, kinds))
        (examples,) = reader.batches(request, len(table), Outside("refuse"))
        found.append(contents(examples))
        reader.close()
    assert all(one == found[0] for one in found[1:])
    size = len(table)
    keys = [key_of(value, name, name) for name in ("number", "text") for value in decoded[name].to_pylist()]
    assert found[0][1][: 2 * size] == keys


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.field("string", pa.int64())), pa.large_list(pa.field("a: string", pa.int32()))]
)
def test_the_name_of_an_element_says_nothing_of_its_kind(kind):
    assert kind_of_name(str(kind)) == kind_of(kind) == "lists of integers"
