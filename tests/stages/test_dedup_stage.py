"""The working set of a block, unique keys of many, and each batch's index into it, within the bytes of its keys."""

import numpy as np
import pytest
from conftest import make_workflow, write_data
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data.blocks import make_block, make_examples

from pipeline.data.agenda import Agenda
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.kernels.dedup import sources_reference, unique_keys_reference
from pipeline.machine.threads import Threads
from pipeline.records import FieldLayout, Refusal
from pipeline.stages.dedup import Workspace, dedup
from pipeline.stages.unique_keys import KeyReader

POOLS = {num: Threads(num) for num in (1, 2, 3, 5)}
"""Fewer threads than batches of a block, as many, and more; more than a batch has values, too."""


def check(examples, layout, work):
    """Deduplicates; compares with the plain reference, batch by batch."""
    keys_V, starts = examples.keys_V.copy(), examples.batch_starts.tolist()
    unique = dedup(examples, work)
    expected_U, _ = unique_keys_reference(keys_V)
    assert unique.keys_U.tolist() == expected_U
    assert unique.block is examples.block
    assert len(unique.batches) == examples.block.num_batches
    for batch, index in enumerate(unique.batches):
        mine_V = keys_V[starts[batch] : starts[batch + 1]]
        own_keys, own_inverse = unique_keys_reference(mine_V)
        assert unique.keys_U[index.unique_P].tolist() == own_keys
        assert index.inverse_V.tolist() == own_inverse
        begin, end = examples.block.batch_bounds(batch)
        groups = sources_reference(
            index.inverse_V, examples.bags[batch], [*layout.single_S], [*layout.multi_M], end - begin
        )
        assert index.source_V.tolist() == [source for group in groups for source in group]
        assert index.starts_P.tolist() == np.cumsum([0, *map(len, groups)]).tolist()
    return unique


LAYOUTS = st.sampled_from(
    [
        FieldLayout((0,), (), ()),
        FieldLayout((0, 2), (1,), (True,)),
        FieldLayout((), (0,), (False,)),
        FieldLayout((1,), (0, 2), (False, True)),
    ]
)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(0, 2**32),
    LAYOUTS,
    st.integers(1, 8),
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.sampled_from([*POOLS]),
    st.data(),
)
def test_a_block_is_indexed_as_by_the_reference(seed, layout, batch_size, sizes, num_threads, data):
    """One workspace for blocks of any size, one after the other."""
    work = Workspace(layout, POOLS[num_threads])
    for number, num_examples in enumerate(sizes):
        num_keys = data.draw(st.sampled_from([1, 5, 1000]))
        check(make_examples(seed + number, batch_size, num_examples, layout, num_keys), layout, work)


@pytest.mark.parametrize("num_threads", POOLS)
def test_the_workspace_grows_with_the_number_of_keys(num_threads):
    layout = FieldLayout((0, 1), (), ())
    work = Workspace(layout, POOLS[num_threads])
    for num_examples, num_keys in ((5000, 100_000), (10, 5), (6000, 100_000)):
        unique = check(make_examples(num_examples, 700, num_examples, layout, num_keys), layout, work)
    assert len(unique.keys_U) > 10_000


def test_the_index_lies_in_the_memory_of_the_keys():
    layout = FieldLayout((0,), (1,), (False,))
    examples = make_examples(1, 6, 15, layout, 9)
    unique = check(examples, layout, Workspace(layout))
    for batch, index in enumerate(unique.batches):
        begin, end = (examples.keys_V.ctypes.data + 8 * int(v) for v in examples.batch_starts[batch : batch + 2])
        assert index.inverse_V.ctypes.data == begin
        assert index.source_V.ctypes.data == begin + (end - begin) // 2
        assert index.inverse_V.nbytes + index.source_V.nbytes == end - begin


def test_the_next_block_leaves_the_working_set_before_it_intact():
    layout = FieldLayout((0,), (), ())
    work = Workspace(layout)
    unique = check(make_examples(1, 4, 9, layout, 9), layout, work)
    keys, batches = unique.keys_U.copy(), [(b.unique_P.copy(), b.starts_P.copy()) for b in unique.batches]
    check(make_examples(2, 4, 9, layout, 9), layout, work)
    np.testing.assert_array_equal(unique.keys_U, keys)
    for index, (unique_P, starts_P) in zip(unique.batches, batches, strict=True):
        np.testing.assert_array_equal(index.unique_P, unique_P)
        np.testing.assert_array_equal(index.starts_P, starts_P)


def test_a_block_without_any_value_has_an_empty_working_set():
    layout = FieldLayout((), (0,), (False,))
    unique = check(make_examples(0, 2, 5, layout, 3, longest_bag=0), layout, Workspace(layout))
    assert len(unique.keys_U) == 0
    assert [len(index.unique_P) for index in unique.batches] == [0, 0, 0]


def test_a_refusal_passes_through_dedup():
    refusal = Refusal(make_block(2, 4), "window", "too small")
    assert dedup(refusal, Workspace(FieldLayout((0,), (), ()))) is refusal


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("block_batches", [1, 3])
def test_keys_alone_are_those_of_the_stages(tmp_path, block_batches, num_threads):
    workflow = make_workflow(write_data(tmp_path), weight="importance")
    source, reader = Source(workflow.data, 7), KeyReader(workflow.data, 7, num_threads)
    agenda = Agenda(source.num_examples, 6, 2)
    blocks = list(agenda.blocks(block_batches))
    assert {block.split for block in blocks} == {"train", "validation", "test"}
    for block in [*blocks, blocks[0]]:
        before = reader.num_values
        examples = source.read(block, ReadBuffer(1 << 20))
        num_values = len(examples.keys_V)
        expected = dedup(examples, Workspace(source.layout)).keys_U
        distinct = reader.distinct_keys(block)
        assert reader.num_values == before + num_values
        assert np.array_equal(np.sort(distinct), np.sort(expected))
        assert np.array_equal(reader.distinct_keys(block), distinct)
    reader.close()


def test_only_the_categorical_columns_are_read(tmp_path):
    workflow = make_workflow(write_data(tmp_path))
    reader = KeyReader(workflow.data, 7)
    columns = {column.name for column in reader.source._reader._columns}
    assert columns == {category.name for category in workflow.data.categories}
    reader.close()
