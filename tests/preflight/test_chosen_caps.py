"""Caps that a workflow leaves out: chosen within the budget, for one batch at least, and changing no bit."""

import json
import re
from dataclasses import replace

import pytest
from conftest import make_workflow, write_data
from hypothesis import given
from hypothesis import strategies as st
from support.depth import examples

from pipeline.device.device import RAM, Ram
from pipeline.messages.sizes import parse_size
from pipeline.preflight import chosen_caps
from pipeline.preflight.chosen_caps import choose_caps
from pipeline.preflight.setup import check, divide_caps, set_up
from pipeline.preflight.sizes import DoesNotFit, device_table, other_buffers, table
from pipeline.run import main
from pipeline.settings.caps import CAP_NAMES
from pipeline.settings.optimizer import Adam
from pipeline.workflow import Storage

PROCESS = 1 << 20


class Gpu(Ram):
    """Asked for nothing but its free memory."""

    on_gpu = True

    def __init__(self, free=1 << 24):
        self._free = free

    def free_bytes(self):
        return self._free


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("chosen"), num_train=400, num_keys=200)


@pytest.fixture(scope="module", autouse=True)
def small_process():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chosen_caps, "resident_bytes", lambda: PROCESS)
        patch.setattr(chosen_caps, "LATER_BYTES", 0)
        yield


def without_caps(root, memory=None, chunk_rows=1024, block_batches=16, **given):
    """The small workflow, of whose caps only `given` are left."""
    storage = Storage(memory=memory, chunk_rows=chunk_rows, **given)
    return make_workflow(root, block_batches=block_batches).with_settings({"storage": storage})


def checked(workflow, device=RAM, world=1, here=True):
    return check(workflow, device, lambda line: None, world, here)


@pytest.fixture(scope="module")
def whole(root):
    return checked(without_caps(root))


def attempt(whole, storage, device):
    """The setup, or why there is none."""
    try:
        return divide_caps(replace(whole, storage=storage, device=device))
    except ValueError as error:
        return str(error)


SIZES = {name: 1 << 30 if name == "disk" else 8 << 20 for name in CAP_NAMES}
GIVEN = st.sets(st.sampled_from(CAP_NAMES), max_size=2).map(lambda names: {name: SIZES[name] for name in sorted(names)})


@examples(10, 400)
@given(st.integers(1, 160 << 20), GIVEN, st.sampled_from([1024, 8192]), st.sampled_from([RAM, Gpu(1 << 24)]))
def test_chosen_caps_fit_and_a_refusal_names_a_budget_that_fits(whole, memory, given, chunk, device):
    setup = attempt(whole, Storage(memory=memory, chunk_rows=chunk, **given), device)
    if isinstance(setup, str) and (said := re.search(r'set storage.memory to "(.*?)"', setup)):
        assert parse_size(said[1]) >= memory
        memory = parse_size(said[1])
        setup = attempt(whole, Storage(memory=memory, chunk_rows=chunk, **given), device)
    if isinstance(setup, str):
        # A cap that is given may itself be too small, or larger than the GPU.
        assert re.search(rf"storage\.({'|'.join(given or ['nothing'])})", setup), setup
        return
    assert {name: getattr(setup.storage, name) for name in given} == given
    if device.on_gpu:
        assert setup.storage.device <= device.free_bytes()
    if not given:
        fit = setup.fit
        others = other_buffers(setup.workflow, setup.agenda, setup.row, 0)
        parts = table(fit.sizes, fit.look_ahead, others)
        on_gpu = {name for name, _, _ in device_table(fit.sizes, fit.look_ahead)} if device.on_gpu else set()
        assert PROCESS + sum(size for name, size, _ in parts if name not in on_gpu | {"disk log"}) <= memory


@pytest.mark.prove
def test_more_memory_never_gives_less_of_anything(root):
    before = None
    for memory in range(64 << 20, 72 << 20, 1 << 18):
        try:
            c = checked(without_caps(root, memory))
            caps = choose_caps(c).storage
        except DoesNotFit:
            assert before is None
            continue
        rows = caps.device + caps.host
        assert before is None or rows >= before
        before = rows
    assert before is not None


def test_a_table_that_fits_takes_no_more_than_it_needs(root):
    said = []
    setup, source = set_up(without_caps(root, 1 << 30), RAM, said.append)
    source.close()
    assert setup.storage.device + setup.storage.host < 4 << 20
    assert any("chosen within 1 GiB of RAM, for about" in line for line in said)


def test_an_epoch_has_blocks_enough_to_overlap(root):
    setup, source = set_up(without_caps(root, 1 << 30, block_batches=64), RAM, lambda line: None)
    source.close()
    steps = -(-setup.agenda.num_examples["train"] // setup.workflow.schedule.batch_size)
    assert setup.fit.look_ahead == 2
    assert steps // setup.fit.block_batches >= 8


def test_workers_of_a_machine_share_what_is_free(root, monkeypatch):
    monkeypatch.setattr(chosen_caps.limits, "free_memory", lambda: 1 << 30)
    budgets = [chosen_caps.budget_of(checked(without_caps(root), world=world)) for world in (1, 2)]
    assert [budget - PROCESS for budget in budgets] == [int(0.7 * (1 << 30)), int(0.7 * (1 << 29))]


def test_the_memory_of_machines_elsewhere_has_to_be_given(root):
    c = checked(without_caps(root), world=2, here=False)
    with pytest.raises(ValueError, match="and how much memory of the workers' machines"):
        divide_caps(c)
    divide_caps(checked(without_caps(root, 128 << 20), world=2, here=False))


@pytest.mark.parametrize("given", [{}, {name: 1 << 26 for name in CAP_NAMES if name != "disk"}], ids=["none", "others"])
def test_a_disk_without_a_limit_is_not_shown(root, given):
    """A scoring writes no rows."""
    said = []
    caps = choose_caps(replace(checked(without_caps(root, **given)), say=said.append)).storage
    assert caps.disk == chosen_caps.UNLIMITED_DISK
    assert len(said) == (not given)
    assert not any("disk" in line for line in said)


def test_the_disk_is_what_is_free_and_what_the_run_takes_already(root, tmp_path, monkeypatch):
    (tmp_path / "log").write_bytes(bytes(1 << 20))
    free = type("usage", (), {"free": 1 << 30})
    monkeypatch.setattr(chosen_caps.shutil, "disk_usage", lambda path: free)
    assert chosen_caps.free_disk(tmp_path / "new") == int(0.9 * (1 << 30))
    assert chosen_caps.free_disk(tmp_path) == int(0.9 * ((1 << 30) + (1 << 20)))
    c = checked(without_caps(root, 128 << 20))
    assert divide_caps(replace(c, run_dir=tmp_path)).storage.disk == chosen_caps.free_disk(tmp_path)


def test_a_full_disk_makes_the_slabs_small_enough_for_a_commit(root, monkeypatch):
    c = checked(without_caps(root, 128 << 20))
    for disk in (1 << 20, 1 << 22):
        monkeypatch.setattr(chosen_caps, "free_disk", lambda run_dir, disk=disk: disk)
        caps = choose_caps(c).storage
        assert 3 * (caps.device + caps.host - 1024 * c.row.num_bytes) <= disk


@pytest.mark.parametrize(("l2", "announced"), [(0.05, True), (1e-5, False)])
def test_rows_that_would_be_unstable_are_announced(root, l2, announced):
    rows = Adam(lr=1e-3, l2=l2, semantics="dense")
    said = []
    set_up(make_workflow(root).with_settings({"optimizer.rows": rows}), RAM, said.append)[1].close()
    assert any("optimizer.rows: lr * l2 / eps is 5,000; above 38" in line for line in said) is announced


def test_memory_without_anything_to_choose_is_refused(root):
    with pytest.raises(ValueError, match="no cap is omitted; omit, for example"):
        Storage(memory="1 GiB", device="1 MiB", host="1 MiB", disk="1 GiB")


@pytest.mark.prove
def test_the_result_is_that_of_caps_that_are_given(root, tmp_path, monkeypatch, capsys):
    """And of a resume with another budget."""
    monkeypatch.chdir(tmp_path)
    results = []
    for name, storage in (("given", None), ("chosen", Storage(memory=128 << 20, chunk_rows=1024))):
        workflow = make_workflow(root).with_settings({"storage": storage} if storage else {})
        path = tmp_path / f"{name}.json"
        path.write_text(workflow.model_dump_json())
        assert main([str(path), "--serial", "--run-dir", name]) == 0
        results.append(json.loads((tmp_path / name / "result.json").read_text())["fingerprint"])
    assert results[0] == results[1]
    assert "storage.device, storage.host, storage.disk" in capsys.readouterr().out
    more = ["--set", "schedule.epochs=3", "--set", "storage.memory=160 MiB", "--serial", "--run-dir", "chosen"]
    assert main(["chosen.json", *more]) == 0
    assert main(["given.json", "--set", "schedule.epochs=3", "--serial", "--run-dir", "given"]) == 0
    after = [json.loads((tmp_path / name / "result.json").read_text())["fingerprint"] for name in ("given", "chosen")]
    assert after[0] == after[1] != results[0]
