"""Property of any run: with small batches and tiers, drawn by Hypothesis, it has the plain trainer's fingerprint."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from support.oracle.reference import Reference
from support.runs.harness import run

from pipeline.settings.optimizer import Optimizer
from pipeline.storage.shards import Shards
from pipeline.workflow import Workflow

SCHEDULES = st.fixed_dictionaries({
    "batch_size": st.integers(1, 9),
    "epochs": st.integers(1, 2),
    "block_batches": st.sampled_from([1, 2, 3, 16]),
    "look_ahead": st.integers(1, 4),
    "shuffle_window": st.sampled_from([0, 7, 64]),
})  # fmt: skip


def sizes_for(largest: int) -> st.SearchStrategy[dict[str, Any]]:
    """Sizes so small that rows go to disk and windows sometimes do not fit. `largest`: maximum number of keys of a
    batch."""
    return st.fixed_dictionaries({
        "device_rows": st.integers(largest, 4 * largest),
        "host_rows": st.sampled_from([0, 1, 2, 9, 40]),
        "ring_rows": st.integers(1, 12).map(lambda times: largest * times),
        "chunk_rows": st.sampled_from([1, 2, 8]),
        "shards": st.sampled_from([1, 1, 4]).map(Shards.all),
    })  # fmt: skip


def check_equal_to_plain_trainer(workflow: Workflow, optimizer: Optimizer, client: Any, sizes: dict[str, Any]) -> None:
    workflow = workflow.model_copy(update={"optimizer": optimizer})
    expected = Reference(workflow).train().fingerprint()
    assert run(workflow, client, **sizes)["fingerprint"] == expected
