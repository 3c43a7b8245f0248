"""Sequences as they are read: the latest values, the same in any form of a list, and refusals that name the place."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.data.parquet_files import LIMIT, blocks_of, data_of, write

from pipeline.data.buffer import ReadBuffer
from pipeline.data.histories import latest
from pipeline.data.source import Source
from pipeline.workflow import Category, Sequence

CLICKS = Sequence(name="clicks", items={"items": "c"}, numbers=("gaps",), max_length=3)
COLUMNS = {"label": [0, 1, 0], "c": [1, 2, 3]}


def written(root, split="train", **columns):
    write(root / f"{split}/a.parquet", **COLUMNS | columns)
    return data_of(root).model_copy(update={"sequences": (CLICKS,), "shuffle_window": 0})


def read(data):
    """The examples of one block of one batch."""
    source = Source(data, 0)
    (block,) = blocks_of(source.num_examples["train"], 100, 1)
    return source.read(block, ReadBuffer(LIMIT))


def refusal(data):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (each caller checks the words)
        read(data)
    return str(caught.value)


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("most", [1, 2, 100])
def test_the_latest_values_of_each_list_are_kept(most, sliced):
    lists = [[1, 2, 3], None, [], [4], [5, 6]]
    array = pa.array([[9, 9], *lists] if sliced else lists, pa.large_list(pa.int16()))
    lengths, kept, values = latest(array.slice(1) if sliced else array, most)
    assert lengths.tolist() == [len(one or ()) for one in lists]
    assert kept.tolist() == [len((one or ())[-most:]) for one in lists]
    assert values.to_pylist() == [value for one in lists for value in (one or ())[-most:]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()), pa.large_list(pa.int8()), pa.list_(pa.dictionary(pa.int8(), pa.int64())),
        pa.list_(pa.float64()),
    ],
    ids=str,
)  # fmt: skip
def test_any_form_of_lists_has_the_keys_and_numbers_of_the_candidate(tmp_path, kind):
    items = pa.array([[3, 2, 1, 2], [], None], kind)
    data = written(tmp_path, items=items, gaps=pa.array([[4, 3, 2, 1], [], []], pa.list_(pa.int32())))
    examples = read(data)
    one, two, three = examples.keys_V[:3].tolist()
    assert examples.keys_V[3:].tolist() == [two, one, two]
    assert examples.bags[0].tolist() == [[3, 6, 6, 6]]
    assert examples.lists == ((3, 6),)
    assert examples.list_numbers[0][0].tolist() == [3, 2, 1]
    assert examples.num_cut == 1
    assert three not in (one, two)


def test_lists_of_other_lengths_in_one_example_are_refused(tmp_path):
    message = refusal(written(tmp_path, items=[[1], [], [1, 2]], gaps=[[1.0], [], [1.0]]))
    assert f"{tmp_path}/train/a.parquet: row group 0, row 2" in message
    assert "column 'gaps' has 1 values and 'items' 2" in message
    assert "must have the same length" in message


def test_lists_that_are_cut_to_one_length_are_compared_before(tmp_path):
    message = refusal(written(tmp_path, items=[[1] * 9, [], []], gaps=[[1.0] * 8, [], []]))
    assert "column 'gaps' has 8 values and 'items' 9" in message


def test_a_null_within_a_history_is_refused(tmp_path):
    message = refusal(written(tmp_path, items=[[1], [], [1, None]], gaps=[[1.0], [], [1.0, 1.0]]))
    assert "column 'items' (data.sequences.items): 1 nulls in lists, the first in row 2" in message
    assert "leave them out of all lists" in message


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("items", [1, 2, 3], "column 'items' (data.sequences.items) has type int64, expected lists of integers"),
        ("gaps", [["a"], [], []], "column 'gaps' (data.sequences.numbers) has type list<element: string>, expected"),
        (
            "items",
            [["a"], [], []],
            "holds lists of text, and its candidate 'c' holds integers; expected lists of integers",
        ),
        ("c", [[1], [], []], "its candidate 'c' holds lists of integers; name a category of single values"),
    ],
)
def test_columns_of_another_kind_are_refused(tmp_path, name, values, said):
    assert said in refusal(written(tmp_path, **{"items": [[1], [], []], "gaps": [[1.0], [], []], name: values}))


def test_a_file_without_the_lists_has_empty_ones(tmp_path):
    written(tmp_path, items=[[1], [], []], gaps=[[1.0], [], []])
    write(tmp_path / "train/b.parquet", **COLUMNS)
    data = data_of(tmp_path).model_copy(update={"sequences": (CLICKS,), "shuffle_window": 0})
    examples = read(data)
    assert np.diff(examples.bags[0][0]).tolist() == [1, 0, 0, 0, 0, 0]
    assert len(examples.list_numbers[0][0]) == 1


def test_a_column_of_nulls_is_empty_histories(tmp_path):
    data = written(tmp_path, items=pa.nulls(3), gaps=pa.nulls(3))
    examples = read(data)
    assert examples.lists == ((3, 3),)


def test_bytes_of_a_block_follow_the_lengths_of_its_lists(tmp_path):
    short = written(tmp_path / "short", items=[[1], [1], []], gaps=[[1.0], [1.0], []])
    long = written(tmp_path / "long", items=[[1], [1, 2, 3], []], gaps=[[1.0], [1.0] * 3, []])
    assert read(long).nbytes - read(short).nbytes == 2 * 8 + 8 * (2 - 1)


def test_predicted_bytes_leave_out_what_is_cut(tmp_path):
    data = written(tmp_path, items=[[1] * 1000, [], []], gaps=[[1.0] * 1000, [], []])
    assert read(data).nbytes <= Source(data, 0).block_bytes(3) < 1000


MISFITS = [
    (
        {"sequences": (Sequence(name="s", items={"items": "d"}),)},
        "the candidate of items 'items' is 'd', which is no",
    ),
    ({"sequences": (CLICKS, Sequence(name="clicks", items={"x": "c"}))}, "has 'clicks' more than once"),
    ({"categories": (Category(name="c"), Category(name="items"))}, "columns named more than once: items"),
    ({"categories": (Category(name="c", width=1),)}, "'c' has a width, which is not possible with data.sequences"),
]


@pytest.mark.parametrize(("changes", "said"), MISFITS)
def test_settings_that_do_not_fit_are_refused(changes, said):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the words are checked)
        data_of(Path("nowhere"), **{"sequences": (CLICKS,)} | changes)
    assert said in str(caught.value)
