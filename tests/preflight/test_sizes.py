"""Caps are caps, a message about one says what to change, and a first window has the keys that it will have."""

import re
from itertools import pairwise

import pytest
from conftest import make_workflow, write_data
from hypothesis import example, given, reject
from hypothesis import strategies as st
from support.depth import examples
from test_chosen_caps import Gpu

from pipeline.data.agenda import Agenda
from pipeline.data.source import Source
from pipeline.device.device import Ram
from pipeline.messages.sizes import format_size_down, parse_size
from pipeline.preflight.check_model import check_model
from pipeline.preflight.checked import Checked
from pipeline.preflight.first_window import reductions, rehearse
from pipeline.preflight.sizes import (
    DoesNotFit,
    FirstWindow,
    fit,
    gpu_bytes,
    log_chunk_bytes,
    read_ring_bytes,
    table,
    with_device_in_bytes,
)
from pipeline.stages import dedup_on_gpu
from pipeline.storage.chunks import MIN_GROWTH, max_chunks
from pipeline.storage.key_map import MIN_BYTES
from pipeline.training.build import row_layout
from pipeline.workflow import Storage


def make_storage(**caps):
    small = {"device": 1 << 20, "host": 1 << 20, "disk": 1 << 20, "read": 1 << 20, "map": 1 << 20, "chunk_rows": 1024}
    return Storage(**small | caps)


def enough(storage, *args, **named):
    """The caps, of which each that is said to be too small was doubled, and the sizes. Slabs with more rows than a log
    can take are no example."""
    for _ in range(400):
        try:
            return storage, fit(storage, *args, **named)
        except DoesNotFit as error:
            if "more than a log can take" in str(error):
                reject()
            name = re.match(r"storage\.(\w+)", str(error))[1]
            storage = storage.model_copy(update={name: 1 + 2 * getattr(storage, name)})
    raise AssertionError("no cap was enough")


CAP = st.one_of(st.integers(0, 1 << 22), st.integers(0, 1 << 42))
TINY = make_storage(device=0, host=1024, disk=165_888, read=1, chunk_rows=1024)
STORAGES = st.builds(
    make_storage, device=CAP, host=CAP, disk=CAP, read=CAP, map=CAP, chunk_rows=st.sampled_from([1024, 8192])
)


@st.composite
def windows(draw):
    keys = draw(st.lists(st.integers(0, 5000), min_size=1, max_size=5))
    unions, union = [], 0
    for n in keys:
        union = draw(st.integers(max(union, n), union + n))
        unions.append(union)
    return FirstWindow(tuple(keys), tuple(unions))


def test_slabs_with_more_rows_than_a_log_are_refused():
    """Found by Hypothesis: a commit of all rows of the slabs must have positions in the log, which have 34 bits."""
    caps = {"device": 1 << 20, "map": 1 << 40, "disk": 1 << 42, "read": 1 << 22, "chunk_rows": 8192}
    window = 1, 1 << 20, 0, FirstWindow((9,), (9,))
    with pytest.raises(DoesNotFit, match=r"than a log can take in one commit \(17,179,869,184\); lower storage.host"):
        fit(make_storage(host=1 << 34, **caps), *window, num_owned=16)
    assert fit(make_storage(host=1 << 33, **caps), *window, num_owned=16)


def test_a_share_is_resolved_into_bytes():
    assert with_device_in_bytes(make_storage(device="25 %"), 4000).device == 1000
    assert with_device_in_bytes(make_storage(device=7), 4000).device == 7


@examples(80, 600)
@given(
    STORAGES, st.integers(1, 2000), st.integers(0, 1 << 21), st.integers(0, 4), windows(), st.integers(0, 1 << 20),
    st.booleans(), st.sampled_from([1, 2, 16]),
)  # fmt: skip
@example(TINY, 1, 0, 0, FirstWindow((0,), (0,)), 0, True, 1)
def test_fit_keeps_every_cap_and_holds_every_block(
    storage, row_bytes, window_bytes, look_ahead, window, commit_bytes, on_gpu, num_owned
):
    """On a GPU both rings are in both tiers, and the device holds copies of the read ring, indices and dedup's
    table."""
    of_window = row_bytes, window_bytes, look_ahead, window, commit_bytes
    storage, sizes = enough(storage, *of_window, on_gpu=on_gpu, num_owned=num_owned)
    rings = sizes.outgoing_rows, sizes.staging_rows
    of_device, of_host = (sum(rings),) * 2 if on_gpu else rings
    copies = gpu_bytes(sizes.read_ring_bytes, 2 * look_ahead + 1) if on_gpu else 0
    assert (sizes.device_rows + of_device) * row_bytes + copies <= storage.device
    assert (sizes.host_rows + of_host + sizes.chunk_rows) * row_bytes <= storage.host
    assert sizes.disk_chunks * log_chunk_bytes(sizes.chunk_rows, row_bytes) + commit_bytes <= storage.disk
    slabs = min(sizes.device_rows + of_device + sizes.host_rows, sizes.map_bytes // MIN_BYTES)
    commit = max_chunks(slabs, sizes.chunk_rows, num_owned)
    assert on_gpu or sizes.disk_chunks >= commit + 2 * MIN_GROWTH * num_owned, "no room for a commit"
    assert sizes.read_ring_bytes + sizes.window_bytes <= storage.read
    assert sizes.map_bytes <= storage.map
    assert sizes.chunk_rows == storage.chunk_rows
    assert min(sizes.device_rows, sizes.host_rows, sizes.disk_chunks, sizes.read_ring_bytes) >= 0
    assert min(rings) // (look_ahead + 1) >= max(window.keys_of_blocks[: look_ahead + 1])
    assert sizes.device_rows >= window.union_of_first[: look_ahead + 1][-1]
    explained = {name: num_bytes for name, num_bytes, _ in table(sizes, look_ahead)}
    for tier, cap in (("device", storage.device), ("host", storage.host), ("disk log", storage.disk)):
        assert sum(num_bytes for name, num_bytes in explained.items() if name.startswith(tier)) <= cap


@examples(20, 100)
@given(st.sampled_from(["device", "host", "read", "disk"]), st.integers(1, 2000), st.integers(0, 3), windows())
def test_a_message_names_the_smallest_sufficient_cap(name, row_bytes, look_ahead, window):
    """The size that the message names is enough, and a tenth less, by which it is rounded at most, is not."""
    roomy = {"device": 1 << 32, "host": 1 << 32, "read": 1 << 40, "map": 1 << 40, "disk": 1 << 60}
    window_bytes = 123_456
    cap = 1000 if name == "read" else 0

    def fits(cap):
        fit(make_storage(**roomy | {name: cap}), row_bytes, window_bytes, look_ahead, window)

    try:
        fits(cap)
    except DoesNotFit as error:
        message = str(error)
    else:
        assert name == "device"
        assert window.union_of_first[: look_ahead + 1][-1] == 0
        return
    assert f"storage.{name} is {format_size_down(cap)}" in message
    assert f"raise storage.{name}" in message
    named = parse_size(re.search(rf'raise storage.{name} to "([^"]+)"', message)[1])
    fits(named)
    # For the read cap it is twice the shuffle window, since the ring has no minimum here.
    with pytest.raises(DoesNotFit, match=f"storage.{name}"):
        fits(window_bytes if name == "read" else int(named / 1.1) - 1)


def test_a_read_cap_without_a_byte_for_the_ring_is_refused():
    with pytest.raises(DoesNotFit, match=r"storage.read is 4 KiB.*takes 4 KiB.*data.shuffle_window"):
        read_ring_bytes(make_storage(read=4096), 4096)
    assert read_ring_bytes(make_storage(read=4097), 4096) == 1


def test_a_look_ahead_longer_than_the_run_fits():
    sizes = fit(make_storage(disk=8 << 20), 64, 1000, 3, FirstWindow((10, 20), (10, 25)))
    assert sizes.outgoing_rows // 4 >= 25


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
