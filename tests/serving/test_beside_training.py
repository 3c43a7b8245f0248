"""A commit that is read beside training stays until the reader ends, or until training would have to end."""

import errno
import fcntl
import os
import shutil
import threading
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import make_table, make_workflow, write_data
from evaluated_runs import THREE_TIERS
from harness import make_driver
from reference import Reference

import pipeline
from pipeline.commits.manifest import Commits
from pipeline.commits.reading import GivenUp, hold
from pipeline.driver.committer import Committer
from pipeline.serving.commit import open_commit
from pipeline.serving.scored_files import ScoreWriter
from pipeline.serving.scoring import ScoringOrder, score
from pipeline.storage.files import Files
from pipeline.storage.log import Log
from pipeline.workflow import Commit


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = write_data(tmp_path_factory.mktemp("data"), num_train=114, num_keys=60)
    for number in range(12):
        table = make_table(np.random.default_rng(number), 6, 60)
        pq.write_table(table, root / f"part-{number:02}.parquet")
    return root


@pytest.fixture
def workflow(root):
    return make_workflow(root, block_batches=1).model_copy(
        update={"commit": Commit(every_blocks=1, keep=1, keep_best=False)}
    )


@pytest.fixture
def after_commit(monkeypatch):
    """Set to a function of the number of commits so far, which is called after each commit."""
    calls, really = [], Committer.commit

    def commit(self, *args, **named):
        really(self, *args, **named)
        for act in calls:
            act(self.newest.number)

    monkeypatch.setattr(Committer, "commit", commit)
    return calls.append


def train(workflow, run_dir, **sizes):
    result = make_driver(workflow, run_dir, **THREE_TIERS, **sizes).run()
    assert result
    return result


def names_of(run_dir):
    return sorted((str(p.relative_to(run_dir)), p.stat().st_size) for p in run_dir.rglob("*") if p.suffix != ".json")


def test_a_scoring_that_lasts_for_ten_commits_has_the_bytes_of_an_undisturbed_one(
    workflow, root, tmp_path, after_commit, monkeypatch
):
    train(workflow, tmp_path / "alone")
    gate, numbers, lines, scorings = threading.Semaphore(0), [], [], []
    write = ScoreWriter._write

    def slowly(self, file):
        """Write a file after each commit."""
        assert gate.acquire(timeout=60)
        return write(self, file)

    def score_beside():
        with (opened := open_commit(run_dir, "last")).held:
            numbers.append(opened.held.number)
            lines.append(score(opened, ScoringOrder([f"{root}/part-*.parquet"], tmp_path / "beside")))

    def begin_or_go_on(number):
        if number == 3:
            shutil.copytree(run_dir, tmp_path / "copy")
            monkeypatch.setattr(ScoreWriter, "_write", slowly)
            scorings.append(threading.Thread(target=score_beside))
            scorings[0].start()
            while not numbers:
                time.sleep(0.01)
        elif 3 < number <= 15:
            gate.release()
        if number == 16:
            scorings[0].join(60)

    run_dir = tmp_path / "run"
    after_commit(begin_or_go_on)
    result = train(workflow, run_dir)
    assert numbers == [3]
    assert lines[0]
    assert result["fingerprint"] == Reference(workflow).train().fingerprint()
    assert names_of(run_dir) == names_of(tmp_path / "alone")
    monkeypatch.setattr(ScoreWriter, "_write", write)
    with (opened := open_commit(tmp_path / "copy", 3)).held:
        score(opened, ScoringOrder([f"{root}/part-*.parquet"], tmp_path / "undisturbed"))
    beside, undisturbed = (
        {p.name: p.read_bytes() for p in (tmp_path / out).glob("*.parquet")} for out in ("beside", "undisturbed")
    )
    assert len(beside) == 12
    assert beside == undisturbed


def numbers_of(run_dir):
    return Commits(run_dir, Files(), 1).numbers()


def test_a_held_commit_stays_and_goes_with_its_reader(workflow, root, tmp_path, after_commit):
    held, seen = [], {}

    def act(number):
        seen[number] = numbers_of(tmp_path)
        if number == 2:
            held.append(hold(tmp_path))
        if number == 13:
            held[0].check()
            held[0].close()

    after_commit(act)
    train(workflow, tmp_path)
    assert seen[2] == [2]
    assert all(seen[number] == [2, number] for number in range(3, 14))
    assert seen[14] == [14]


def test_training_gives_up_a_held_commit_before_the_disk_ends_the_run(workflow, tmp_path, after_commit):
    alone = train(workflow, tmp_path / "alone", disk_chunks=140)
    held, gone = [], []

    def act(number):
        if number == 2:
            held.append(pipeline.open_run(tmp_path / "run"))
        elif held and not gone:
            try:
                held[0]._opened.held.check()
            except GivenUp as given_up:
                gone.append((number, str(given_up)))

    after_commit(act)
    result = train(workflow, tmp_path / "run", disk_chunks=140)
    assert result["fingerprint"] == alone["fingerprint"]
    (number, said), *_ = gone
    assert number > 3, "the commit was not kept at all"
    assert "commit 2" in said
    with pytest.raises(GivenUp, match="commit 2"):
        held[0].rows("item", [1])
    held[0].close()


def test_a_commit_that_is_about_to_be_deleted_is_not_taken(workflow, tmp_path):
    keeping = workflow.model_copy(update={"commit": Commit(every_blocks=8, keep=3, keep_best=False)})
    train(keeping, tmp_path)
    commits = Commits(tmp_path, Files(), keep=1)
    first, *_, last = commits.numbers()
    kept = commits.kept()
    assert [manifest.number for manifest in kept] == [last]
    with pytest.raises(ValueError, match="training is deleting this commit"):
        hold(tmp_path, first)
    commits.prune(kept)
    assert commits.numbers() == [last]
    with hold(tmp_path) as held:
        assert held.number == last


def test_a_run_that_was_moved_aside_is_not_mixed_with_the_one_in_its_place(root, tmp_path):
    """Trained on the same data with another seed, it has the same keys at the same places."""
    workflow = make_workflow(root)
    train(workflow, tmp_path / "run")
    with pipeline.open_run(tmp_path / "run", "last") as run:
        number = run.commit
        shutil.move(tmp_path / "run", tmp_path / "run.1")
        train(workflow.model_copy(update={"seed": 8}), tmp_path / "run")
        assert number in numbers_of(tmp_path / "run")
        with pytest.raises(GivenUp, match="moved aside"):
            run.rows("item", range(60))


def test_a_commit_that_goes_while_its_rows_are_read_gives_none_of_them(root, tmp_path, monkeypatch):
    """Also if its chunks come again with other rows."""
    train(make_workflow(root), tmp_path)
    for bend in (lambda rows_UW: None, lambda rows_UW: rows_UW.__setitem__((slice(None), 0), 0)):
        with monkeypatch.context() as patch, pipeline.open_run(tmp_path, "last") as run:
            run.rows("item", [1])
            gather, path = Log.gather, Commits(tmp_path, Files(), 1).manifest_file(run.commit)
            content = path.read_bytes()

            def gone(self, at_U, out_UW, gather=gather, bend=bend, path=path):
                gather(self, at_U, out_UW)
                bend(out_UW)
                path.unlink(missing_ok=True)

            patch.setattr(Log, "gather", gone)
            with pytest.raises(GivenUp, match="is gone"):
                run.rows("item", range(60))
            path.write_bytes(content)


def test_a_lock_that_only_a_file_open_for_writing_gets_is_respected(workflow, tmp_path, monkeypatch):
    """As on NFS, where others are refused with EBADF."""
    keeping = workflow.model_copy(update={"commit": Commit(every_blocks=1, keep=3, keep_best=False)})
    train(keeping, tmp_path)
    flock = fcntl.flock

    def of_nfs(descriptor, how):
        if how & fcntl.LOCK_EX and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    commits = Commits(tmp_path, Files(), keep=1)
    first, *_, last = commits.numbers()
    with hold(tmp_path, first):
        commits.prune(commits.kept())
        assert commits.numbers() == [first, last]


def test_a_look_at_the_kept_commits_leaves_no_lock(workflow, tmp_path):
    """The locks of what would be deleted end with the object that took them."""
    keeping = workflow.model_copy(update={"commit": Commit(every_blocks=8, keep=3, keep_best=False)})
    train(keeping, tmp_path)
    for _ in range(2):
        commits = Commits(tmp_path, Files(), keep=1)
        assert [manifest.number for manifest in commits.kept()] == commits.numbers()[-1:]
        del commits
