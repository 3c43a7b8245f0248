"""A run that is killed, loses power, meets a failing disk or a flipped bit: the quick part of `benchmarks.crash`. And
files that are not there when they are read, are too short, or cannot be read."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from support import depth

from benchmarks.crash.damage import fault_trials, flip_trials
from benchmarks.crash.faults import Call
from benchmarks.crash.job import Job, differences, quiet_verify, run_trial
from benchmarks.crash.points import journaled, kill_children, resumptions, second_deaths, states
from benchmarks.crash.volume import PAGE_BYTES, Volume, lay_out
from pipeline.commits.manifest import Commits
from pipeline.errors import PipelineError
from pipeline.storage.files import Damaged, Files


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return journaled(Job(tmp_path_factory.mktemp("crash"), epochs=1))


def failures(trials):
    assert trials
    return [f"{trial.label}: {wrong}" for trial in trials if (wrong := run_trial(trial))]


def third_commit(calls):
    """Numbers of the calls after the second commit up to the end of the third one, the first that deletes another."""
    allocations = [number for number, call in enumerate(calls) if call.kind == "allocate"]
    return range(allocations[2] + 2, allocations[3] + 2)


def test_the_undisturbed_run_makes_every_kind_of_call(undisturbed):
    """Rows go to disk and are merged, old commits are deleted, the best one is kept."""
    kinds = {call.kind for call in undisturbed.calls}
    assert kinds == {"mkdir", "create", "open", "write", "fsync", "close", "rename", "unlink", "allocate"}
    sites = " ".join(call.site for call in undisturbed.calls)
    for part in ("write_back.write_to_disk", "flush.flush", "manifest.prune", "log.remove", "result.write_outputs"):
        assert part in sites, part
    with tempfile.TemporaryDirectory() as name:
        lay_out(undisturbed.left, Path(name))
        kept = Commits(Path(name), Files(), keep=9).kept()
    assert any(m.name == "best" for m in kept)
    assert kept[-1].state["disk"]["rows_merged"] > 0


def test_power_loss_keeps_what_was_fsynced_and_may_lose_the_rest():
    """The model of a disk: pages, length, name and the folder's own name are durable once fsynced, and not before."""
    page = bytes([1]) * PAGE_BYTES
    volume = Volume()
    for call in (
        Call("mkdir", "d", ""),
        Call("fsync", ".", ""),
        Call("create", "d/a", ""),
        Call("write", "d/a", "", content=3 * page),
        Call("fsync", "d/a", ""),
        Call("fsync", "d", ""),
        Call("rename", "d/a", "", target="d/b"),
        Call("create", "d/c", ""),
        Call("write", "d/c", "", content=2 * page),
        Call("mkdir", "e", ""),
        Call("create", "e/f", ""),
    ):
        volume.apply(call)
    found = [volume.power_loss(np.random.default_rng(n)) for n in range(300)]
    assert all(state["d"] is None and state.get("d/a", state.get("d/b")) == 3 * page for state in found)
    assert {("d/a" in s, "d/b" in s) for s in found} == {(True, False), (False, True)}
    zeros = bytes(PAGE_BYTES)
    assert {s["d/c"] for s in found if "d/c" in s} >= {page + page, page + zeros, zeros + page, zeros + zeros}
    assert {("e" in s, "e/f" in s) for s in found} == {(False, False), (True, False), (True, True)}
    assert any(len(s["d/c"]) < 2 * PAGE_BYTES for s in found if "d/c" in s)


@pytest.mark.deep
def test_a_run_that_died_after_a_call_resumes_to_the_same_result(undisturbed):
    numbers = [-1, *range(3, len(undisturbed.calls), len(undisturbed.calls) // (20 if depth.PROVES else 8))]
    assert not failures(resumptions(undisturbed, states({}, undisturbed.calls, numbers, 1))[0])


@pytest.mark.prove
def test_a_run_of_several_shards_resumes_to_the_same_result(undisturbed, tmp_path):
    sharded = journaled(Job(undisturbed.job.data, epochs=1, shards=4))
    assert sharded.expected["fingerprint"] == undisturbed.expected["fingerprint"]
    numbers = range(3, len(sharded.calls), len(sharded.calls) // 20)
    assert not failures(resumptions(sharded, states({}, sharded.calls, numbers, 1))[0])


@pytest.mark.prove
def test_a_killed_resumption_resumes_to_the_same_result(undisturbed):
    found = second_deaths(undisturbed, 3, np.random.default_rng(1))
    assert not failures(resumptions(undisturbed, found)[0])


@pytest.mark.prove
def test_a_killed_child_process_resumes_to_the_same_result(undisturbed):
    assert not kill_children(undisturbed, 1, np.random.default_rng(2)).failures


@pytest.mark.prove
def test_a_failing_call_is_reported_and_loses_no_commit(undisturbed):
    """Each call site of one commit, with one of its faults."""
    rng, chosen = np.random.default_rng(3), {}
    for trial in fault_trials(undisturbed, third_commit(undisturbed.calls), rng):
        site = tuple(trial.call.site.split(" < ")[:3])
        chosen.setdefault((trial.call.kind, site), []).append(trial)
    assert not failures([trials[rng.integers(len(trials))] for trials in chosen.values()])


def test_a_flipped_bit_is_found_and_never_changes_a_result(undisturbed):
    assert not failures(flip_trials(undisturbed, 15, np.random.default_rng(4)))


def missing(file, monkeypatch):
    file.unlink()
    return ""


def truncated(file, monkeypatch):
    os.truncate(file, file.stat().st_size // 2)
    return ""


def unreadable(file, monkeypatch):
    really = Path.read_bytes

    def read_bytes(path):
        if path == file:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return really(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    return os.strerror(errno.EIO)


@pytest.mark.parametrize("damage", [missing, truncated, unreadable])
@pytest.mark.parametrize("what", ["the manifest", "the dense state", "keys"])
def test_an_unreadable_file_of_a_commit_is_named(undisturbed, tmp_path, monkeypatch, what, damage):
    """Opening a commit, one of whose files is not there, is too short, or gives EIO. Without its newest manifest a run
    goes on from the commit before."""
    lay_out(undisturbed.left, tmp_path)
    newest = Commits(tmp_path, Files(), keep=1).kept()[-1]
    stem = tmp_path / "commits" / f"{newest.number:06}"
    keys = tmp_path / "table.zarr" / "keys" / f"c.{newest.chunks[0].number}"
    files = {"the manifest": stem.with_suffix(".json"), "the dense state": stem.with_suffix(".safetensors")}
    file = files.get(what, keys)
    said = damage(file, monkeypatch)
    if what == "the manifest" and damage is missing:
        assert not differences(undisturbed.job.run(tmp_path), undisturbed.expected)
        return
    with pytest.raises((OSError, PipelineError)) as error:
        undisturbed.job.run(tmp_path)
    assert file.name in str(error.value)
    assert said in str(error.value)
    assert damage is not truncated or isinstance(error.value, Damaged)
    if damage is not unreadable:
        assert quiet_verify(tmp_path)[0] == 1
