"""Whatever is done to a file of an unfinished output, going on leaves an undisturbed run's bytes, or says why not."""

import json
import random
import shutil

import pytest
from support.data.preparations import contents, prepare, write_lines
from support.faults import altered_outputs as altered
from support.faults.kills import killed_anywhere

from pipeline.prepare import run
from pipeline.prepare.parts import Records
from pipeline.prepare.steps import do_piece

NUM_LINES = 500
ALTERATIONS = 50


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_lines(tmp_path_factory.mktemp("raw") / "day", "csv", NUM_LINES)


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "out"
    with pytest.MonkeyPatch.context() as patch:
        assert altered.prepare(patch, source, out) == 0
    return contents(out)


def go_on(patch, source, out, whole, capsys):
    """Whether it is finished within three attempts; else each was refused with a message."""
    for _ in range(3):
        code = altered.prepare(patch, source, out)
        err = capsys.readouterr().err
        assert "Traceback" not in err
        if code == 0:
            left = contents(out)
            assert left.keys() == whole.keys()
            # Of the command all but its bytes is compared before anything is done.
            assert [name for name in whole if left[name] != whole[name]] in ([], [".prepare/command.json"])
            return True
        assert code in (1, 2)
        assert err.count("error: ") == 1
    return False


@pytest.fixture
def ended(source, tmp_path, monkeypatch, capsys):
    """Function that prepares into the folder `out`, and returns the exit code and what is said of errors."""

    def prepare(ends_at=None, path=source):
        capsys.readouterr()
        code = altered.prepare(monkeypatch, path, tmp_path / "out", *([ends_at] if ends_at else []))
        return code, capsys.readouterr().err

    return prepare


def unfinished(patch, source, tmp_path):
    """Outputs that ended among the parts, before the workflow, and before the manifest. The workflow is named after the
    folder, so all have the same name."""
    for ends_at in (1, 4):
        assert altered.prepare(patch, source, tmp_path / f"ends-{ends_at}" / "out", ends_at) == 1
    for name in ("workflow_text", "write_manifest"):
        with pytest.MonkeyPatch.context() as failing:
            failing.setattr(run, name, fail)
            assert altered.prepare(failing, source, tmp_path / f"ends-{name}" / "out") == 1
    return sorted(tmp_path.glob("ends-*/out"))


def fail(*_):
    raise OSError("ended")


def alter_one(patch, rng, source, whole, before, folder, capsys):
    """What was done to which file, and whether it was finished nevertheless."""
    (folder / "outside").mkdir(parents=True)
    shutil.copytree(before, out := folder / "out")
    path = rng.choice(sorted(path for path in out.rglob("*") if path.is_file()))
    way = rng.choice(altered.WAYS)
    way(path, rng, out)
    outside = contents(folder / "outside")
    finished = go_on(patch, source, out, whole, capsys)
    assert contents(folder / "outside") == outside
    shutil.rmtree(folder)
    return way.__name__, str(path.relative_to(out)), finished


@pytest.mark.prove
def test_an_altered_file_is_made_again_or_refused(source, whole, tmp_path, monkeypatch, capsys):
    outputs = unfinished(monkeypatch, source, tmp_path)
    capsys.readouterr()
    rng = random.Random(0)
    done = [
        alter_one(monkeypatch, rng, source, whole, rng.choice(outputs), tmp_path / f"{number}", capsys)
        for number in range(ALTERATIONS)
    ]
    # Nothing but the command is needed to resume, and a name that is taken.
    refused = {(way, path) for way, path, finished in done if not finished}
    assert {path for way, path in refused if way != "be_folder"} <= {".prepare/command.json", "_workflow.py"}, refused


@pytest.mark.prove
def test_a_kill_at_any_system_call_changes_no_byte(tmp_path, monkeypatch):
    log = write_lines(tmp_path / "day", "csv", 200)

    def work(folder):
        assert altered.prepare(monkeypatch, log, folder / "out") == 0
        return contents(folder / "out")

    (tmp_path / "whole").mkdir()
    expected = work(tmp_path / "whole")
    assert len([name for name in expected if name.startswith("train/")]) > 1
    num_kills = 0
    for folder in killed_anywhere(tmp_path, work):
        assert contents(folder / "out") == expected
        num_kills += 1
    assert num_kills > 80


WRITE = ".prepare/write"
NOTES = ("note.txt", "train/note.partial", ".prepare/note", f"{WRITE}/part-note.json", f"{WRITE}/notes/note")


def test_files_of_a_user_in_any_folder_survive(source, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    assert altered.prepare(monkeypatch, source, out, 4) == 1
    for note in NOTES:
        (out / note).parent.mkdir(exist_ok=True)
        (out / note).write_text(note)
    assert altered.prepare(monkeypatch, source, out) == 0
    assert contents(out) == whole | {note: note.encode() for note in NOTES}


LINKS = ("train", ".prepare", ".prepare/write")


@pytest.mark.parametrize("link", LINKS)
def test_a_linked_folder_is_refused_and_its_target_is_unchanged(tmp_path, ended, link):
    out = tmp_path / "out"
    assert ended(4)[0] == 1
    (outside := tmp_path / "outside").mkdir()
    (outside / "thesis").mkdir()
    (outside / "thesis" / "all.partial").write_text("of it")
    (out / link).rename(outside / "moved")
    (out / link).symlink_to(outside / "moved")
    shutil.copytree(outside / "thesis", outside / "moved" / "thesis")
    before = contents(outside)
    code, said = ended()
    assert (code, f"error: {out / link} is a link" in said) == (2, True)
    assert contents(outside) == before


def test_a_command_of_other_options_or_a_damaged_one_is_refused(tmp_path, ended):
    assert ended(4)[0] == 1
    path = tmp_path / "out/.prepare/command.json"
    content = json.loads(path.read_bytes())
    path.write_text(json.dumps(content | {"options": content["options"] | {"other": 5}}))
    another = "begun with another command: other is 5 there and null here; --fresh moves it aside, --out names another"
    code, said = ended()
    assert (code, another in said) == (2, True)
    path.write_text("{")
    code, said = ended()
    assert (code, f"{path} is damaged; --fresh moves {tmp_path / 'out'} aside" in said) == (2, True)


def test_an_output_may_be_a_link(source, whole, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    assert altered.prepare(monkeypatch, source, tmp_path / "out") == 0
    assert contents(tmp_path / "real") == whole


def test_a_truncated_finished_output_is_refused_and_repaired(whole, tmp_path, ended):
    out = tmp_path / "out"
    assert ended()[0] == 0
    for name in ("train/part-0000-00001.parquet", "_prepared.json"):
        (out / name).write_bytes((out / name).read_bytes()[:-9])
        code, said = ended()
        assert (code, f"error: {out / name}" in said) == (2, True)
    (out / "_prepared.json").unlink()
    assert ended()[0] == 0
    assert contents(out) == whole


FORGED = {
    "splits": lambda m: m.update(splits={}),
    "options": lambda m: m.update(options={}),
    "files": lambda m: m.update(files=[]),
    "a file outside": lambda m: m["files"][0].update(name="../outside.parquet"),
    "a file of another split": lambda m: m["files"][0].update(split="test"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_forged_manifest_is_refused(source, finished, monkeypatch, capsys, what):
    manifest = finished / "_prepared.json"
    before = manifest.read_bytes()
    (finished.parent / "outside.parquet").write_bytes((finished / "train/part-0000-00001.parquet").read_bytes())
    changed = json.loads(before)
    FORGED[what](changed)
    manifest.write_text(json.dumps(changed))
    try:
        assert altered.prepare(monkeypatch, source, finished) == 2
    finally:
        manifest.write_bytes(before)
    said = capsys.readouterr().err
    assert said.startswith(f"error: {manifest} is damaged (")
    assert said.endswith("); remove it, and the same command makes the output again\n")


@pytest.fixture(scope="module")
def finished(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "out"
    with pytest.MonkeyPatch.context() as patch:
        assert altered.prepare(patch, source, out) == 0
    return out


def test_a_workflow_edited_by_a_user_is_never_overwritten(tmp_path, ended):
    out = tmp_path / "out"
    assert ended()[0] == 0
    (out / "_workflow.py").write_text("mine")
    (out / "_prepared.json").unlink()
    code, said = ended()
    assert (code, "move it to keep it" in said) == (1, True)
    assert (out / "_workflow.py").read_text() == "mine"


def test_a_source_that_changes_during_preparation_is_an_error(source, tmp_path, monkeypatch, ended):
    path = shutil.copy(source, tmp_path / "day")

    def grow(job, piece):
        with open(path, "ab") as file:
            file.write(b"0,1,,2024-02-01,a,1,x\n")
        return do_piece(job, piece)

    monkeypatch.setattr(run, "do_piece", grow)
    code, said = ended(path=path)
    assert (code, f"{path} has changed since (bytes, mtime_ns" in said) == (1, True)


def test_a_record_of_a_part_that_no_source_has_is_refused(tmp_path, ended):
    assert ended(4)[0] == 1
    records, name = Records(tmp_path / "out/.prepare/write"), "part-0000-00003"
    more = records.read(name).model_copy(update={"file": 7, "number": 0, "files": (), "lines": 0, "skipped": 0})
    records.write(more)
    code, said = ended()
    assert code == 1
    assert f"{records.path(more.name)} is the record of a part that the sources do not have; remove it" in said


PIECE = ("--piece-size", "4 KiB", "--workers", 1)


@pytest.fixture
def sources(tmp_path):
    """A folder with three files, each of several parts."""
    (tmp_path / "raw").mkdir()
    for number in range(3):
        write_lines(tmp_path / "raw" / f"day_{number}", "avazu", 150, number)
    return tmp_path / "raw"


def add(path, line, at):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:at], line, *lines[at:]]))


def check_goes_on(tmp_path, sources, capsys, *corrected):
    """The corrected command resumes, and leaves what it would have made in an empty folder."""
    capsys.readouterr()
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, *corrected) == 0
    said = capsys.readouterr().out
    assert "resumes with what was corrected" in said
    assert prepare("avazu", sources, tmp_path / "again", *PIECE, *corrected) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "again")
    return said


def test_a_command_with_skip_bad_added_keeps_finished_parts(tmp_path, sources, capsys):
    add(sources / "day_1", b"nonsense\n", 60)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE) == 1
    said = capsys.readouterr().err
    assert "day_1: line 61: expected 24 columns, got 1; correct it, or leave bad lines out (--skip-bad " in said
    assert "the same command resumes, when a source is corrected, or with another --skip-bad" in said
    made = [path.stat().st_mtime_ns for path in sorted((tmp_path / "out" / ".prepare" / "write").iterdir())]
    assert made
    said = check_goes_on(tmp_path, sources, capsys, "--skip-bad", 0.1)
    assert "(--skip-bad): 0 parts are made again" in said


def test_only_a_corrected_source_is_read_again(tmp_path, sources, capsys):
    good = (sources / "day_1").read_bytes()
    add(sources / "day_1", b"nonsense\n" * 3000, 60)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE) == 1
    names = {path.name for path in (tmp_path / "out" / ".prepare" / "write").iterdir()}
    (sources / "day_1").write_bytes(good)
    said = check_goes_on(tmp_path, sources, capsys)
    of_day_1 = sum(name.startswith("part-0001") for name in names)
    assert 0 < of_day_1 < len(names)
    assert f"({sources / 'day_1'}): {of_day_1} parts are made again" in said


def test_a_smaller_skip_bad_makes_parts_beyond_it_again(tmp_path, sources, capsys):
    good = (sources / "day_2").read_bytes()
    add(sources / "day_0", b"nonsense\n" * 3, 5)
    add(sources / "day_2", b"nonsense\n" * 3000, 5)
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, "--skip-bad", 0.5) == 1
    (sources / "day_2").write_bytes(good)
    capsys.readouterr()
    assert prepare("avazu", sources, tmp_path / "out", *PIECE, "--skip-bad", 0.001) == 1
    assert "this is bad line 2 of a part" in capsys.readouterr().err
    check_goes_on(tmp_path, sources, capsys, "--skip-bad", 0.5)
