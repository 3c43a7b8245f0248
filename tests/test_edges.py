"""Every edge of the schedule, every ring's length, and every order inside a stage is needed: leave one out, force the
one bad order, and the result is wrong, every time."""

import re

import pytest
from conftest import make_workflow, write_data
from support.faults.gates import outcome
from support.oracle.reference import Reference

from pipeline.schedule import edges
from pipeline.stages import train, write_back
from pipeline.stages.plan import plan
from pipeline.worker.flight import RingLengths
from pipeline.worker.stage_runner import StageRunner
from pipeline.workflow import Category

L = 2
SIZES = {"device_rows": 100, "host_rows": 10, "chunk_rows": 4}


@pytest.fixture(scope="module")
def workflow(tmp_path_factory):
    """Blocks of one small batch: most rows go through host and disk, and come back within a few blocks."""
    root = write_data(tmp_path_factory.mktemp("edges"), num_train=120, num_keys=60)
    return make_workflow(root, block_batches=1, look_ahead=L, batch_size=6, epochs=2)


@pytest.fixture(scope="module")
def one_shape(tmp_path_factory):
    """Batches that all have the same number of keys, so that the indices of one are within the bounds of another."""
    root = write_data(tmp_path_factory.mktemp("shape"), num_train=120, num_keys=1 << 30, with_nulls=False)
    categories = (Category(name="item"), Category(name="user"), Category(name="country"))
    workflow = make_workflow(root, categories=categories, block_batches=1, look_ahead=L, batch_size=6, epochs=2)
    return workflow.with_settings({"data.validation": (), "data.test": ()})


@pytest.fixture(scope="module")
def foresees(workflow):
    """Both tiers choose by next uses, known for three blocks ahead."""
    policies = dict.fromkeys(("storage.device_policy", "storage.host_policy"), "foresight")
    return workflow.with_settings(policies | {"storage.known_examples": 18})


@pytest.fixture(scope="module")
def expected(workflow, one_shape):
    return {w.data.root.name: Reference(w).train().fingerprint() for w in (workflow, one_shape)}


def without(*removed):
    """The schedule's edges but for some, given as (stage, the stage it waits for, how many blocks later or earlier)."""

    def fewer(stage, i, look_ahead):
        return [(s, j) for s, j in edges(stage, i, look_ahead) if (stage, s, j - i) not in removed]

    return fewer


def hold(stage, until, ahead):
    """A gate before every task of `stage`: it waits for `until`, so many blocks ahead."""
    return lambda task: [(until, task[1] + ahead)] if task[0] == stage else []


def overtake_by_one_round(task):
    """`read` comes into a buffer before `train` is through with it, but not before `dedup`, and never twice: so the
    indices that `train` finds there stay within bounds."""
    stage, i = task
    ring = 2 * L + 1
    return {"train": [("dedup", i + ring)], "read": [("dedup", i - ring), ("train", i - 2 * ring)]}.get(stage, [])


def write_back_before_train(task):
    return {"train": [("write_back", task[1])], "write_back": [("upload", task[1])]}.get(task[0], [])


def overtake_by_one_block(stage):
    """Every other block of the stage waits for the next one."""
    return lambda task: [(stage, task[1] + 1)] if task[0] == stage and task[1] % 2 == 0 else []


@pytest.mark.parametrize("data", ["workflow", "foresees"])
@pytest.mark.parametrize("late", [("write_back", "prefetch", L), ("scan", "dedup", L), ("plan", "read", L)])
def test_a_task_delayed_within_its_edges_changes_no_result(request, expected, tmp_path, data, late):
    case = request.getfixturevalue(data)
    assert outcome(case, tmp_path, hold(*late), **SIZES) == expected[case.data.root.name]


OTHER_BITS = "[0-9a-f]{32}"
WRONG_ROW = "raised prefetch of .* rows are not the requested ones"
NO_RECORD = "(KeyError: [0-9]+|AssertionError: expected .*, got None)"
"""What a stage finds that runs before the one that it takes its record from."""


def check_wrong(got, wrong, expected):
    """A wrong result of the kind that the bad order leads to, not of some accident."""
    assert got != expected
    assert re.match(wrong, got, re.DOTALL), got


EDGES = [
    ("read", "train", -2 * L - 1, overtake_by_one_round, "one_shape", OTHER_BITS),
    ("dedup", "read", 0, hold("read", "dedup", 0), "workflow", f"raised dedup .*{NO_RECORD}"),
    ("plan", "unite", 0, hold("dedup", "plan", 0), "workflow", f"raised plan .*{NO_RECORD}"),
    ("plan", "unite", 1, hold("dedup", "plan", -1), "workflow", f"raised plan .*{NO_RECORD}"),
    ("plan", "unite", L, hold("dedup", "plan", -L), "workflow", f"raised plan .*{NO_RECORD}"),
    ("scan", "plan", -1, hold("plan", "scan", 1), "foresees", "raised scan .*not planned yet"),
    ("plan", "scan", 0, hold("scan", "plan", 0), "foresees", f"raised plan .*{NO_RECORD}"),
    ("prefetch", "plan", 0, hold("plan", "prefetch", 0), "workflow", f"raised prefetch .*{NO_RECORD}"),
    (
        "prefetch", "write_back", -L - 1, hold("write_back", "prefetch", L + 1), "workflow",
        f"{WRONG_ROW}|raised prefetch .*FileNotFoundError",
    ),
    ("upload", "prefetch", 0, hold("prefetch", "train", 0), "workflow", f"raised train .*{NO_RECORD}"),
    ("train", "upload", 0, hold("prefetch", "train", 0), "workflow", f"raised train .*{NO_RECORD}"),
    ("write_back", "train", 0, write_back_before_train, "workflow", f"raised (write_back|train) .*{NO_RECORD}"),
]  # fmt: skip
"""(stage, what it waits for, distance, the gate that forces the bad order, data, what comes of it)"""


@pytest.mark.parametrize(
    ("stage", "after", "distance", "gate", "data", "wrong"), EDGES, ids=[f"{e[0]}_{e[1]}{e[2]:+}" for e in EDGES]
)
def test_an_edge_left_out_gives_a_wrong_result(request, expected, tmp_path, stage, after, distance, gate, data, wrong):
    case = request.getfixturevalue(data)
    removed = [(stage, after, distance)]
    if (stage, after) == ("plan", "unite"):
        # Each stage follows itself: the later edges of the window, or the next plan's, would imply the one left out.
        removed = [("plan", "unite", ahead) for ahead in range(distance, L + 1)]
    check_wrong(outcome(case, tmp_path, gate, without(*removed), **SIZES), wrong, expected[case.data.root.name])


@pytest.mark.parametrize(
    ("stage", "wrong"),
    [
        # Rows that have not arrived yet are whatever lies in their slots.
        ("plan", f"{OTHER_BITS}|{WRONG_ROW}|raised train .*FloatingPointError"),
        ("train", f"{OTHER_BITS}|{WRONG_ROW}|raised train .*FloatingPointError"),
        ("write_back", WRONG_ROW),
    ],
)
def test_a_stage_that_overtakes_itself_gives_a_wrong_result(workflow, expected, tmp_path, stage, wrong):
    fewer = without((stage, stage, -1))
    got = outcome(workflow, tmp_path, overtake_by_one_block(stage), fewer, check_order=False, **SIZES)
    check_wrong(got, wrong, expected[workflow.data.root.name])


@pytest.mark.parametrize("stage", ["read", "dedup", "plan", "prefetch", "train", "write_back"])
def test_a_stage_called_out_of_turn_raises(workflow, tmp_path, stage):
    got = outcome(workflow, tmp_path, overtake_by_one_block(stage), without((stage, stage, -1)), **SIZES)
    assert f"{stage} was called for block" in got


RINGS = [
    ("read", RingLengths(2 * L, L + 1, L + 1), hold("train", "dedup", 2 * L), "one_shape", OTHER_BITS),
    (
        "staging",
        RingLengths(2 * L + 1, L, L + 1),
        hold("train", "prefetch", L),
        "workflow",
        f"{WRONG_ROW}|{OTHER_BITS}",
    ),
    ("outgoing", RingLengths(2 * L + 1, L + 1, L), hold("write_back", "train", L), "workflow", WRONG_ROW),
]


@pytest.mark.parametrize(("name", "rings", "gate", "data", "wrong"), RINGS, ids=[ring[0] for ring in RINGS])
def test_a_ring_one_buffer_too_short_gives_a_wrong_result(request, expected, tmp_path, name, rings, gate, data, wrong):
    case = request.getfixturevalue(data)
    assert outcome(case, tmp_path / "whole", gate, **SIZES) == expected[case.data.root.name]
    check_wrong(outcome(case, tmp_path / "short", gate, rings=rings, **SIZES), wrong, expected[case.data.root.name])


def test_a_plan_that_sees_no_window_gives_a_wrong_result(workflow, expected, tmp_path, monkeypatch):
    def blind(self, i):
        self._flights[i].plan = plan([self._flights[i].unique], self.tiers.places, self._room)
        return self._flights[i].plan

    monkeypatch.setattr(StageRunner, "_plan", blind)
    got = outcome(workflow, tmp_path, hold("write_back", "prefetch", L), **SIZES)
    check_wrong(got, WRONG_ROW, expected[workflow.data.root.name])


def test_arrivals_before_victims_give_a_wrong_result(workflow, expected, tmp_path, monkeypatch):
    def reversed_swap(p, staged, device, outgoing_EW):
        device.scatter(p.arrival_slots, staged.rows_AW[: len(p.arrival_slots)])
        device.gather(p.victim_slots_E, outgoing_EW)

    monkeypatch.setattr(train, "swap", reversed_swap)
    check_wrong(outcome(workflow, tmp_path, **SIZES), WRONG_ROW, expected[workflow.data.root.name])


def test_outgoing_rows_before_host_victims_give_a_wrong_result(workflow, expected, tmp_path, monkeypatch):
    write_to_disk, keep = write_back.write_to_disk, write_back.keep_on_host

    def keep_first(p, trained, host, disk, chunk_RW):
        keep(p, trained, host)
        write_to_disk(p, trained, host, disk, chunk_RW)

    monkeypatch.setattr(write_back, "write_to_disk", keep_first)
    monkeypatch.setattr(write_back, "keep_on_host", lambda p, trained, host: None)
    check_wrong(outcome(workflow, tmp_path, **SIZES), WRONG_ROW, expected[workflow.data.root.name])
