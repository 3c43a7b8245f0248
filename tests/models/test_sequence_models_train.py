"""Every model of sequences trains through three tiers to the bits of the plain trainer."""

from pathlib import Path

import pytest
from support.data.histories import workflow_with_histories, write_histories
from support.depth import some
from support.oracle.reference import Reference
from support.oracle.worker_cases import ignore
from support.runs.crew_threads import ONE, crew_driver, workers_of
from support.runs.harness import run
from test_sequence_models import SMALL

THREE_TIERS = {"device_rows": 150, "host_rows": 24, "chunk_rows": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_histories(tmp_path_factory.mktemp("histories"), num_train=70, num_keys=60)


def args_of(name):
    kind, args, _ = SMALL[name]
    return {"kind": kind, "args": args | ({"heads": 1} if "heads" in args else {})}


@pytest.mark.parametrize("name", some(SMALL, "DIN", "DIEN", "BST", "SASRec"))
def test_tiers_never_change_what_a_sequence_model_learns(name, root):
    workflow = workflow_with_histories(root, **args_of(name), epochs=1)
    result = run(workflow, **THREE_TIERS)
    assert result["tiers"]["disk"]["rows_in"] > 0
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()


def test_workers_share_the_statistics_of_a_batches_values(root, tmp_path):
    """After one step they are those of a single worker, which has all values."""
    workflow = workflow_with_histories(root, **args_of("DIN"), block_batches=1, batch_size=8)
    found = []
    for world in (ONE, 3):
        with crew_driver(workflow, tmp_path / str(world), world) as driver:
            driver.crew.run([next(driver.agenda.blocks(1))], 1, ignore)
            found.append([worker.model() for worker in workers_of(driver)])
    (alone,), replicas = found
    norms = [name for name in alone if ".running_" in name]
    assert len(norms) == 2 * 4
    for replica in replicas:
        assert all(replica[name].tobytes() == replicas[0][name].tobytes() for name in alone)
        for name in norms:
            assert replica[name] == pytest.approx(alone[name], rel=1e-5, abs=1e-7)
