"""What is given up first when the caps are too small."""

from itertools import pairwise

import pytest
from conftest import make_workflow, write_data
from test_chosen_caps import Gpu

from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.device.device import Ram
from pipeline.preflight.check_model import check_model
from pipeline.preflight.checked import Checked
from pipeline.preflight.first_window import reductions, rehearse
from pipeline.preflight.sizes import DoesNotFit, with_device_in_bytes
from pipeline.stages import dedup_on_gpu
from pipeline.training.build import row_layout


@pytest.mark.parametrize("look_ahead", range(4))
@pytest.mark.parametrize("block_batches", [1, 2, 5, 16, 100])
def test_each_reduction_is_tried_once_the_look_ahead_first(look_ahead, block_batches):
    steps = reductions(look_ahead, block_batches)
    assert steps[0] == (look_ahead, block_batches)
    assert steps[-1] == (0, 1)
    assert len(set(steps)) == len(steps)
    for (ahead, batches), (less_ahead, fewer) in pairwise(steps):
        assert (less_ahead, fewer) == ((ahead - 1, batches) if ahead else (0, batches // 2))
        # What `plan` refused is planned again with less: continuing from there gives the rest of the list.
        assert reductions(ahead, batches)[1] == (less_ahead, fewer)


def fit_of(workflow, device, said=None):
    source = Source(workflow.data, workflow.seed)
    agenda = Agenda(source.num_examples, workflow.schedule.batch_size, workflow.schedule.epochs)
    say = (lambda line: None) if said is None else said.append
    storage, row = with_device_in_bytes(workflow.storage, device.free_bytes()), row_layout(workflow)
    dense = check_model(workflow, row)
    return rehearse(Checked(
        workflow=workflow, device=device, say=say, storage=storage, row=row, dense=dense, source=source, agenda=agenda
    ))  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("rehearse"))


def test_a_share_of_the_free_memory_equals_its_size_in_bytes(root):
    of_gpu, as_size = (
        make_workflow(root, storage={"device": device, "read": "1 MiB"}) for device in ("25 %", "16 MiB")
    )
    assert fit_of(of_gpu, Gpu(1 << 26)) == fit_of(as_size, Gpu(1 << 26))
    assert fit_of(of_gpu, Gpu(1 << 26)).sizes.gpu_bytes > 1 << 20
    assert fit_of(as_size, Ram()).sizes.gpu_bytes == 0


def test_too_many_keys_for_dedup_are_found_before_training(root, monkeypatch):
    """A batch has some 30 keys."""
    workflow = make_workflow(root, storage={"read": "1 MiB"}, block_batches=4)
    said = []
    monkeypatch.setattr("pipeline.preflight.first_window.limit_of", lambda num_bytes: 40)
    assert fit_of(workflow, Gpu(1 << 26), said).block_batches == 1
    assert "dedup's table on the GPU has room for 40; raise storage.read" in said[0]
    monkeypatch.setattr("pipeline.preflight.first_window.limit_of", lambda num_bytes: 4)
    with pytest.raises(DoesNotFit, match="one batch alone does not fit: blocks of 1 batches have"):
        fit_of(workflow, Gpu(1 << 26))
    assert fit_of(workflow, Ram()).block_batches == 4
    assert dedup_on_gpu.limit_of(1 << 20) == 1 << 16


def test_a_block_larger_than_a_read_buffer_is_refused(root, monkeypatch):
    monkeypatch.setattr(Source, "block_bytes", lambda self, num_examples, num_batches: 1 << 40)
    with pytest.raises(DoesNotFit, match=r"one batch alone does not fit: .*storage\.read"):
        fit_of(make_workflow(root), Ram())
