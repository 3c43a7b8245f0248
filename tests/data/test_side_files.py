"""Side files of a run: a span is trained with those that were newest when it began, whatever becomes of the files."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.data.days import days_workflow, write_days
from support.depth import some

from pipeline.api import Category, Lookup, Rare
from pipeline.commits.manifest import Commits
from pipeline.data.side_files import FOLDER, SideFiles, check_changes
from pipeline.driver import session as sessions
from pipeline.driver.driver import Driver
from pipeline.errors import PipelineError
from pipeline.storage.files import Files, checksum
from pipeline.verify import verify

DAYS = [60, 48, 40]
BRANDS = [{n: f"{n % 3}" for n in range(8)}, {n: f"{n % 3}" for n in range(14)}, {n: f"{n % 4}" for n in range(20)}]
"""Side table of each night: the second has new keys only, the third also other values."""
LOOKUP = Lookup(file="items.parquet", column="item", key="id", take={"brand": "brand"})


def write_brands(root: Path, night: int) -> None:
    table = pa.table({"id": list(BRANDS[night]), "brand": list(BRANDS[night].values())})
    pq.write_table(table, root / "items.parquet")


def workflow_of(root: Path, **data):
    workflow = days_workflow(root, batch_size=8, block_batches=1).with_settings({"commit.every_blocks": 2})
    categories = (*workflow.data.categories, Category(name="brand"))
    return workflow.model_copy(update={"data": workflow.data.model_copy(update={"categories": categories, **data})})


def session_of(workflow, run_dir, extend=(), workers=None, like=None):
    return sessions.plan_session(
        workflow, run_dir, workers is None, workers, None, lambda line: None, extend=extend, known_ok=True, like=like
    )


def night(workflow, run_dir, *extend, workers=None, like=None):
    with sessions.open_session(session_of(workflow, run_dir, tuple(map(str, extend)), workers, like), False) as driver:
        return driver.run()["fingerprint"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Fingerprint of one run over all days, whose files have the brands of their night as a column, and the days."""
    root, plain = tmp_path_factory.mktemp("days"), tmp_path_factory.mktemp("plain")
    for day, file in enumerate(write_days(root, DAYS)):
        table = pq.read_table(file)
        brands = pa.array([BRANDS[day].get(key) for key in table["item"].to_pylist()], pa.string())
        pq.write_table(table.append_column("brand", brands), plain / file.name, row_group_size=8)
    names = tuple(file.name for file in sorted(plain.iterdir()))
    return root, night(workflow_of(plain, train=names), plain / "run")


KILLS = [None, 1, 2]


@pytest.mark.parametrize("died_after", some(KILLS, None, 2))
def test_a_span_uses_the_side_table_with_which_it_began(expected, tmp_path, monkeypatch, died_after):
    """The first command of nights 2 and 3 ends after so many commits: 1 is taken when its day is scored and nothing of
    it is trained, 2 within its day. So the table of the command before or after it must not be used."""
    root = tmp_path / "data"
    shutil.copytree(expected[0], root)
    workflow, files = workflow_of(root, train=("train-0.parquet",), features=(LOOKUP,)), sorted(root.glob("train-*"))
    for number in range(len(DAYS)):
        write_brands(root, number)
        if number and died_after:
            left, take = iter(range(died_after)), Driver.commit

            def commit(self, due, left=left, take=take):
                if next(left, None) is None:
                    raise PipelineError("killed")
                take(self, due)

            write_brands(root, number - (died_after == 1))
            with monkeypatch.context() as patched:
                patched.setattr(Driver, "commit", commit)
                with pytest.raises(PipelineError, match="killed"):
                    night(workflow, tmp_path / "run", files[number])
            write_brands(root, min(number + (died_after == 2), len(DAYS) - 1))
        found = night(workflow, tmp_path / "run", *files[number : number + 1] * bool(number))
    assert found == expected[1]
    newest = Commits(tmp_path / "run", Files(), 1).kept()[-1]
    assert [first for first, _ in newest.state["side_files_by_span"]] == [0, 1, 2]
    copies = {path.stem for path in (tmp_path / "run" / FOLDER).iterdir()}
    assert copies == {checksum((root / LOOKUP.file).read_bytes())}, "no day that uses another one is in training"
    assert verify(tmp_path / "run") == 0
    with pytest.raises(ValueError, match=r"the copy of items\.parquet that data\.features names, is .*missing"):
        session_of(workflow, tmp_path / "alike", like=tmp_path / "run")
    for number in range(len(DAYS)):
        write_brands(root, number)
        digest = checksum((root / LOOKUP.file).read_bytes())
        shutil.copy(root / LOOKUP.file, tmp_path / "run" / FOLDER / f"{digest}.parquet")
    assert night(workflow, tmp_path / "alike", like=tmp_path / "run") == expected[1]


FORESIGHT = {"storage.device_policy": "foresight", "storage.host_policy": "foresight"}


@pytest.mark.parametrize(("workers", "settings"), some([(None, FORESIGHT), (2, {})], (None, FORESIGHT), several=True))
def test_every_reader_of_a_run_reads_its_copies(expected, tmp_path, monkeypatch, workers, settings):
    """The side file is damaged as soon as the run has copied it, before its workers and their scanners open."""
    workflow = workflow_of(tmp_path / "data", features=(LOOKUP,)).with_settings(settings)
    shutil.copytree(expected[0], tmp_path / "data")
    write_brands(tmp_path / "data", 0)
    fingerprint = night(workflow, tmp_path / "undisturbed", workers=workers)
    keep = sessions.keep_side_files

    def keep_and_damage(*args):
        keep(*args)
        (tmp_path / "data" / LOOKUP.file).write_bytes(b"damaged")

    monkeypatch.setattr(sessions, "keep_side_files", keep_and_damage)
    assert night(workflow, tmp_path / "run", workers=workers) == fingerprint


@pytest.mark.parametrize("resumed", [False, True])
def test_a_side_file_that_changes_while_a_run_begins_is_refused(expected, tmp_path, resumed):
    workflow = workflow_of(tmp_path / "data", features=(LOOKUP,))
    shutil.copytree(expected[0], tmp_path / "data")
    write_brands(tmp_path / "data", 0)
    if resumed:
        night(workflow, tmp_path / "run")
    session = session_of(workflow, tmp_path / "run")
    write_brands(tmp_path / "data", 1)
    with (
        pytest.raises(ValueError, match=r"items\.parquet, which data.features names, was changed while the run began"),
        sessions.open_session(session, False),
    ):
        raise AssertionError("it was opened")


REFUSING = LOOKUP.model_copy(update={"changes": "refuse"})
RARE = Rare(column="item", at_least=3, counts="items.parquet", changes="refuse")


@pytest.mark.parametrize(
    ("feature", "before", "now", "said"),
    [
        (REFUSING, {1: "a", 2: None}, {1: "a", 2: None, 3: "b"}, "has changed, 0 known keys have"),
        (LOOKUP, {1: "a", 2: "b"}, {1: "a", 2: "c"}, "has changed, 1 known keys have"),
        (REFUSING, {1: "a", 2: "b"}, {1: "a", 2: "c"}, "other values, the first 2, and its changes is 'refuse'"),
        (REFUSING, {1: "a", 2: "b"}, {1: "a"}, "other values, the first 2, and its changes is 'refuse'"),
        (LOOKUP, {1: "a"}, {1: 7}, "column 'brand' has type int64, and had string; write it as before"),
        (LOOKUP, {1: "a"}, {"1": "a"}, "column 'id' has type text, and had integers; write it as before"),
        (RARE, {1: 5, 2: 1}, {1: 9, 2: 2, 3: 8}, "has changed, 0 known keys have"),
        (RARE, {1: 5, 2: 1}, {1: 5, 2: 3}, "other values, the first 2, and its changes is 'refuse'"),
        (RARE, {1: 5, 2: 1}, {2: 1}, "other values, the first 1, and its changes is 'refuse'"),
        (RARE, {1: 5}, {"1": 5}, "its values are text, and were integers; count them as before"),
    ],
)
def test_what_a_changed_side_file_may_have(tmp_path, feature, before, now, said):
    """A value of None is a row with a null."""
    names = ("id", "brand") if feature.kind == "lookup" else ("value", "count")
    (tmp_path / FOLDER).mkdir()
    for path, rows in ((tmp_path / FOLDER / "was.parquet", before), (tmp_path / "items.parquet", now)):
        pq.write_table(pa.table(dict(zip(names, ([*rows], [*rows.values()]), strict=True))), path)
    data = workflow_of(tmp_path, features=(feature,)).data

    sides = SideFiles(tmp_path / FOLDER, before=((0, {"items.parquet": "was"}),))

    def remarks():
        try:
            return list(check_changes(data, sides, {"items.parquet": "is"}))
        except ValueError as error:
            return [f"refused: {error}"]

    (remark,) = remarks()
    assert said in remark
    assert remark.startswith("refused") == ("refuse" in said or "as before" in said)
