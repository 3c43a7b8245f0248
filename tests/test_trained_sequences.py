"""Runs with sequences have the fingerprint of the plain trainer, whatever moves their rows."""

import json
import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.data.histories import CATEGORIES, SEQUENCES, workflow_with_histories, write_histories
from support.depth import examples, some
from support.faults.killed_after_commit import kill_after
from support.oracle.optimizers import EXACT
from support.oracle.reference import Reference
from support.runs.any_run import SCHEDULES, check_equal_to_plain_trainer, sizes_for
from support.runs.harness import make_driver, run

from pipeline.features.settings import Rare
from pipeline.features.side_files import COLUMNS
from pipeline.models import DeepFM
from pipeline.preflight.check_model import check_model
from pipeline.storage.policies import POLICIES
from pipeline.training.build import row_layout
from pipeline.workflow import Category, Commit

THREE_TIERS = {"device_rows": 150, "host_rows": 24, "chunk_rows": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_histories(tmp_path_factory.mktemp("histories"), num_train=90, num_keys=60)


@pytest.mark.parametrize("policy", some(POLICIES, "lru", "foresight"))
def test_sequences_through_three_tiers_equal_the_plain_trainer(root, policy):
    workflow = workflow_with_histories(root, storage={"device_policy": policy, "host_policy": policy})
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 50
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@st.composite
def runs(draw):
    """Data, workflow and sizes; the sizes are small enough that rows go to disk, and windows sometimes do not fit."""
    table = draw(st.sampled_from([None, "shared"]))
    data = {
        "seed": draw(st.integers(0, 9)),
        "num_train": draw(st.integers(2, 45)),
        "num_keys": draw(st.sampled_from([1, 3, 15, 40])),
    }
    workflow = {
        "categories": tuple(
            Category(name=c.name, table=table, pooling=c.pooling) for c in draw(st.permutations(CATEGORIES))
        ),
        "sequences": tuple(
            sequence.model_copy(update={"max_length": draw(st.sampled_from([1, 3, 100]))})
            for sequence in draw(st.sampled_from([SEQUENCES, SEQUENCES[::-1]]))
        ),
        **draw(SCHEDULES),
    }
    largest = 9 * (4 * len(CATEGORIES) + 3 * 8) + 2
    return data, workflow, draw(sizes_for(largest))


@given(runs(), st.sampled_from(list(EXACT.values())), st.booleans())
@examples(5, 60)
def test_any_run_with_sequences_equals_the_plain_trainer(client, case, optimizer, with_dask):
    data, changes, sizes = case
    with tempfile.TemporaryDirectory() as folder:
        workflow = workflow_with_histories(write_histories(Path(folder), **data), **changes)
        check_equal_to_plain_trainer(workflow, optimizer, client if with_dask else None, sizes)


def test_rare_values_of_a_candidate_are_rare_in_its_lists(root, tmp_path):
    for path in root.glob("*.parquet"):
        shutil.copy(path, tmp_path)
    items = pa.concat_tables([pq.read_table(path, columns=["item"]) for path in sorted(root.glob("train*"))])
    counts = items["item"].drop_null().value_counts()
    table = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
    pq.write_table(table.replace_schema_metadata({COLUMNS: json.dumps(["item"])}), tmp_path / "item.parquet")
    rule = Rare(column="item", at_least=2, counts="item.parquet")
    workflow = workflow_with_histories(tmp_path, epochs=1).with_settings({"data.features": [rule.model_dump()]})
    result = run(workflow, **THREE_TIERS)
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert result["rows"] < run(workflow.with_settings({"data.features": ()}), **THREE_TIERS)["rows"]


def test_a_killed_run_with_sequences_resumes_to_the_same_result(root, tmp_path, monkeypatch):
    workflow = workflow_with_histories(root).model_copy(update={"commit": Commit(every_blocks=3)})
    kill_after(4, workflow, tmp_path, monkeypatch)
    result = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


@pytest.mark.parametrize("name", some([name for name in EXACT if "CowClip" in name], "CowClip"))
def test_clipping_counts_the_examples_of_a_key_in_any_list(root, name):
    workflow = workflow_with_histories(root, epochs=1).model_copy(update={"optimizer": EXACT[name]})
    assert run(workflow, **THREE_TIERS)["fingerprint"] == Reference(workflow).train().fingerprint()


def test_the_report_counts_the_sequences_that_were_cut(root, tmp_path):
    """Two epochs, with a validation after each, and the test."""
    workflow = workflow_with_histories(root)
    expected = 0
    for pattern, times in (("train*", 2), ("validation*", 2), ("test*", 1)):
        for file in root.glob(pattern):
            lengths = [len(clicks or ()) for clicks in pq.read_table(file)["clicked"].to_pylist()]
            expected += times * sum(length > 4 for length in lengths)
    assert run(workflow)["cut_sequences"] == expected > 0


def test_a_model_that_reads_no_sequences_is_refused(root):
    workflow = workflow_with_histories(root, kind=DeepFM, args={"hidden": (5,)})
    with pytest.raises(ValueError, match=r"DeepFM takes no sequences: its forward \(.*deepfm.py.*leave out data"):
        check_model(workflow, row_layout(workflow))


def test_a_model_that_reads_sequences_needs_some(root):
    workflow = workflow_with_histories(root, sequences=())
    with pytest.raises(ValueError, match=r"Pooled reads sequences, and there are none: set data\.sequences"):
        check_model(workflow, row_layout(workflow))


def test_a_model_is_tried_with_empty_and_with_long_sequences(root):
    said = []
    workflow = workflow_with_histories(root)
    facts = check_model(workflow, row_layout(workflow), said.append)
    assert facts.activation_bytes > 100 * 4 * workflow.model.embedding_dim / 2
    assert not said


def test_settings_that_sequences_do_not_allow_are_refused(root):
    workflow = workflow_with_histories(root)
    with pytest.raises(ValueError, match=r"batch of schedule\.batch_size 30,000,000 may have [0-9,]+ values"):
        workflow.with_settings({"schedule.batch_size": 30_000_000})


def test_workflows_without_sequences_are_written_without_the_field(root):
    workflow = workflow_with_histories(root)
    assert '"sequences":[{"name":"clicks","items":{"clicked":"item"' in workflow.model_dump_json()
    assert "sequences" not in workflow.with_settings({"data.sequences": ()}).model_dump_json()
