"""Unique keys that are read without the rest of the examples."""

import numpy as np
import pytest
from conftest import make_workflow, write_data

from pipeline.data.agenda import Agenda
from pipeline.data.buffer import ReadBuffer
from pipeline.data.source import Source
from pipeline.stages.dedup import Workspace, dedup
from pipeline.stages.unique_keys import KeyReader


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
