"""A commit that is read during training stays until the reader ends, or until training would have to end."""

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
from support.faults.killed_after_commit import changed, kill_after
from support.oracle.reference import Reference
from support.runs.evaluated_runs import bits_of
from support.runs.harness import THREE_TIERS, make_driver

import pipeline
from pipeline.commits.manifest import Commits
from pipeline.commits.reading import GivenUp, hold
from pipeline.driver.committer import Committer
from pipeline.serving import dense_files
from pipeline.serving.commit import open_commit
from pipeline.serving.export import main as export_main
from pipeline.serving.score import main as score_main
from pipeline.serving.scored_files import ScoreWriter
from pipeline.serving.scoring import Scorer, ScoringOrder, score
from pipeline.storage.files import Files
from pipeline.storage.log import Log
from pipeline.verify import main as verify
from pipeline.workflow import Commit

RARE = Commit(every_blocks=8, keep=3, keep_best=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = write_data(tmp_path_factory.mktemp("data"), num_train=114, num_keys=60)
    for number in range(12):
        table = make_table(np.random.default_rng(number), 6, 60)
        pq.write_table(table, root / f"part-{number:02}.parquet")
    return root


@pytest.fixture(scope="module")
def workflow(root):
    return make_workflow(root, block_batches=1).model_copy(
        update={"commit": Commit(every_blocks=1, keep=1, keep_best=False)}
    )


@pytest.fixture(scope="module")
def alone(workflow, tmp_path_factory):
    """Directory and fingerprint of a run that nobody reads."""
    run_dir = tmp_path_factory.mktemp("alone")
    return run_dir, train(workflow, run_dir)["fingerprint"]


@pytest.fixture
def after_commit(monkeypatch):
    """Set to a function of the number of commits so far, which is called after each commit."""
    calls, really = [], Committer.commit

    def commit(self, *args, **named):
        given_up = really(self, *args, **named)
        for act in calls:
            act(self.newest.number)
        return given_up

    monkeypatch.setattr(Committer, "commit", commit)
    return calls.append


def train(workflow, run_dir, **sizes):
    result = make_driver(workflow, run_dir, **THREE_TIERS, **sizes).run()
    assert result
    return result


def names_of(run_dir):
    """Names and sizes; those of JSON and of the report have seconds in them, or which commits were kept."""
    return sorted(
        (str(p.relative_to(run_dir)), p.suffix not in (".html", ".json", ".jsonl") and p.stat().st_size)
        for p in run_dir.rglob("*")
    )


@pytest.mark.prove
def test_a_scoring_during_ten_commits_has_the_same_bytes(workflow, alone, root, tmp_path, after_commit, monkeypatch):
    gate, numbers, lines, scorings = threading.Semaphore(0), [], [], []
    write = ScoreWriter._write

    def slowly(self, file):
        """Write a file after each commit."""
        assert gate.acquire(timeout=60)
        return write(self, file)

    def score_during_training():
        with (opened := open_commit(run_dir, "last")).held:
            numbers.append(opened.held.number)
            lines.append(score(opened, ScoringOrder([f"{root}/part-*.parquet"], tmp_path / "during")))

    def begin_or_go_on(number):
        if number == 3:
            shutil.copytree(run_dir, tmp_path / "copy")
            monkeypatch.setattr(ScoreWriter, "_write", slowly)
            scorings.append(threading.Thread(target=score_during_training))
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
    assert names_of(run_dir) == names_of(alone[0])
    monkeypatch.setattr(ScoreWriter, "_write", write)
    with (opened := open_commit(tmp_path / "copy", 3)).held:
        score(opened, ScoringOrder([f"{root}/part-*.parquet"], tmp_path / "undisturbed"))
    outs = tmp_path / "during", tmp_path / "undisturbed"
    during, undisturbed = ({p.name: p.read_bytes() for p in out.glob("*.parquet")} for out in outs)
    assert len(during) == 12
    assert during == undisturbed


def numbers_of(run_dir):
    return Commits(run_dir, Files(), 1).numbers()


def test_a_commit_with_two_readers_stays_until_the_second_ends(workflow, tmp_path, after_commit):
    readers, seen = [], {}

    def act(number):
        seen[number] = numbers_of(tmp_path)
        if number == 2:
            readers.extend(hold(tmp_path) for _ in range(2))
        if number in (5, 9):
            readers.pop(0).close()

    after_commit(act)
    train(changed(workflow, schedule__epochs=1), tmp_path)
    assert all(seen[number] == [2, number] for number in range(3, 10))
    assert seen[10] == [10]


def predictions_of(run, root):
    return bits_of(run.predict(pq.read_table(root / "test.parquet"))).tolist()


@pytest.mark.prove
def test_a_held_commit_outlives_a_killed_and_resumed_training(
    workflow, alone, root, tmp_path, after_commit, monkeypatch
):
    """Also for a reader that reads nothing until the end."""
    readers, found, seen = [], [], {}

    def act(number):
        seen[number] = numbers_of(tmp_path)
        if number == 3:
            readers.extend(pipeline.open_run(tmp_path) for _ in range(2))
        if 3 <= number <= 8:
            found.append(predictions_of(readers[0], root))

    after_commit(act)
    kill_after(6, workflow, tmp_path, monkeypatch)
    assert seen.keys() == set(range(1, 7))
    assert train(workflow, tmp_path)["fingerprint"] == alone[1]
    assert all(seen[number] == [3, number] for number in range(4, len(seen) + 1))
    for reader in readers:
        found.append(predictions_of(reader, root))
        reader.close()
    assert found == [found[0]] * 8


def test_a_reader_predicts_the_same_after_a_repair(workflow, root, tmp_path, capsys):
    """Also one that reads nothing before it. A commit that is itself damaged goes, with those who read it."""
    train(changed(workflow, commit=RARE), tmp_path)
    *whole, newest = numbers_of(tmp_path)
    early, late, of_newest = (pipeline.open_run(tmp_path, number) for number in (whole[0], whole[0], newest))
    with early, late, of_newest:
        before = predictions_of(early, root)
        dense = Commits(tmp_path, Files(), 1).dense_file(newest)
        dense.write_bytes(dense.read_bytes()[:-1])
        assert verify([str(tmp_path), "--repair"]) == 0
        assert f"went back to commit {whole[-1]}" in capsys.readouterr().out
        assert numbers_of(tmp_path) == whole
        assert predictions_of(early, root) == before
        assert predictions_of(late, root) == before
        with pytest.raises(GivenUp, match=f"commit {newest} .* --repair"):
            of_newest.predict(pq.read_table(root / "test.parquet"))


def state_of(run_dir):
    return sorted((str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in [run_dir, *run_dir.rglob("*")])


WAYS = (
    lambda run, test: run.predict(test),
    lambda run, test: run.evaluate(test),
    lambda run, test: run.rows("item", range(60)),
    lambda run, test: list(run.table_batches()),
)


@pytest.mark.prove
def test_twenty_readers_leave_what_training_alone_leaves(workflow, alone, root, tmp_path, after_commit, monkeypatch):
    """Each stays until the next but one comes. Scorings and exports are among them."""
    # Exporters of the dense part take seconds, and know nothing of the run directory.
    monkeypatch.setattr(dense_files, "exported", None)
    run_dir, test, readers = tmp_path / "run", pq.read_table(root / "test.parquet"), []

    def read(number):
        before = state_of(run_dir)
        readers.append(pipeline.open_run(run_dir, "last"))
        if len(readers) > 2:
            readers.pop(0).close()
        WAYS[number % 4](readers[-1], test)
        out = ["--commit", "last", "--out", str(tmp_path / f"{number} of {readers[-1].commit}")]
        if number == 9:
            assert score_main([str(run_dir), f"{root}/part-0*.parquet", *out]) == 0
        elif number == 17:
            assert export_main([str(run_dir), *out]) == 0
        # Training waits for this function: nobody else has changed anything.
        assert state_of(run_dir) == before

    def act(number):
        if 3 <= number < 23:
            read(number)
        elif number == 23:
            while readers:
                readers.pop().close()

    after_commit(act)
    assert train(workflow, run_dir)["fingerprint"] == alone[1]
    assert names_of(run_dir) == names_of(alone[0])
    # Without another scoring, which `test_scoring.py` has.
    for number in range(10, 30):
        read(number)


def test_training_gives_up_a_held_commit_before_the_disk_is_full(workflow, alone, tmp_path, after_commit):
    held, gone = [], []

    def act(number):
        if number == 2:
            held.append(pipeline.open_run(tmp_path / "run"))
        elif held and not gone:
            try:
                held[0].rows("item", [1])
            except GivenUp as given_up:
                gone.append((number, str(given_up)))

    after_commit(act)
    result = train(workflow, tmp_path / "run", disk_chunks=140)
    assert result["fingerprint"] == alone[1]
    (number, said), *_ = gone
    assert number > 3, "the commit was not kept at all"
    assert "commit 2" in said
    with pytest.raises(GivenUp, match="commit 2"):
        held[0].rows("item", [1])
    held[0].close()


@pytest.mark.prove
def test_a_scoring_whose_commit_is_given_up_ends_with_its_number(
    workflow, alone, root, tmp_path, after_commit, monkeypatch, capsys
):
    run_dir, out, begun, goes_on = tmp_path / "run", tmp_path / "out", threading.Event(), threading.Event()
    take, codes, seen = Scorer._take, [], {}

    def late(self, done, progress):
        begun.set()
        assert goes_on.wait(60)
        take(self, done, progress)

    def score_during_training():
        codes.append(score_main([str(run_dir), f"{root}/part-*.parquet", "--out", str(out), "--commit", "2"]))

    def act(number):
        seen[number] = numbers_of(run_dir)
        if number == 2:
            scoring.start()
            assert begun.wait(60)
        elif number > 2 and 2 not in seen[number]:
            goes_on.set()

    monkeypatch.setattr(Scorer, "_take", late)
    scoring = threading.Thread(target=score_during_training)
    after_commit(act)
    result = train(workflow, run_dir, disk_chunks=140)
    scoring.join(60)
    assert result["fingerprint"] == alone[1]
    assert seen[3] == [2, 3], "the commit was not kept at all"
    assert seen[max(seen)] == [max(seen)]
    assert codes == [1]
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert f"error: commit 2 of {run_dir} is gone" in said
    # The same command would find no such commit.
    assert "the same command" not in said
    assert not [path for path in out.iterdir() if path.is_file()]


def test_a_commit_that_is_about_to_be_deleted_is_not_taken(workflow, tmp_path):
    train(changed(workflow, commit=RARE), tmp_path)
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


def test_a_run_that_was_moved_is_not_mixed_with_a_new_one(root, tmp_path):
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


def test_a_commit_deleted_while_it_is_read_gives_no_rows(root, tmp_path, monkeypatch):
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


@pytest.mark.prove
def test_a_lock_that_needs_a_writable_file_is_respected(workflow, tmp_path, monkeypatch):
    """As on NFS, where others are refused with EBADF."""
    train(changed(workflow, commit=Commit(every_blocks=1, keep=3, keep_best=False)), tmp_path)
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
    train(changed(workflow, commit=RARE), tmp_path)
    for _ in range(2):
        commits = Commits(tmp_path, Files(), keep=1)
        assert [manifest.number for manifest in commits.kept()] == commits.numbers()[-1:]
        del commits
