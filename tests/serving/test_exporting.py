"""The command `export`: one that was interrupted goes on to the same bytes, and what is in a folder is never lost."""

import shutil
from types import SimpleNamespace

import pytest
from support import depth
from support.oracle.data_path import ROW, Machine
from test_scoring import contents
from test_servable import export, refuse

from pipeline import verify
from pipeline.serving import dense_files
from pipeline.serving.export import main as export_main
from pipeline.serving.exporting import ExportRecord, claim_folder
from pipeline.serving.servable import read_servable
from pipeline.serving.sorted_runs import check_num_rows, rows_of_chunks
from pipeline.storage.files import Damaged, Files
from pipeline.storage.log import TableFormat
from pipeline.storage.shards import ONE_SHARD


@pytest.fixture(scope="module", autouse=True)
def _without_programs():
    """Exports have no ONNX file and no exported program, whose exporters take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense_files, "exported", refuse)
        yield


@pytest.fixture(scope="module")
def servable(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("servables") / "one"
    assert export(trained, out) == 0
    return out


@pytest.mark.deep
def test_a_killed_export_goes_on_to_the_same_bytes(trained, tmp_path, monkeypatch):
    """Stopped before each write that makes a file durable, or, in the quick form, before one in three."""
    replace, calls = Files.replace, []

    def counted(self, path, buffers):
        if len(calls) == stop:
            raise KeyboardInterrupt
        calls.append(path)
        return replace(self, path, buffers)

    monkeypatch.setattr(Files, "replace", counted)
    out, stop = tmp_path / "out", 1 << 30
    assert export(trained, tmp_path / "whole") == 0
    whole, stop = contents(tmp_path / "whole"), 0
    while True:
        calls.clear()
        code = export(trained, out)
        if code == 0:
            break
        assert code == 130
        stop += 1 if depth.PROVES else 3
        if stop in (3, 6):
            shutil.rmtree(out)
    assert stop >= 8
    assert contents(out) == whole


@pytest.mark.parametrize("made", [(), ("_exporting",)])
def test_an_export_killed_before_its_record_goes_on(trained, servable, tmp_path, made):
    for name in made:
        (tmp_path / "out" / name).mkdir(parents=True)
    if "_exporting" in made:
        (tmp_path / "out" / "_exporting" / "record.0123456789.partial").write_bytes(b"half")
    assert export(trained, tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(servable)


def test_an_export_killed_after_its_manifest_is_published(trained, servable, tmp_path, monkeypatch):
    def stop(path, **named):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stop)
        assert export(trained, tmp_path / "out") == 130
    assert (tmp_path / "out" / "_exporting").exists()
    assert export(trained, tmp_path / "out", "--publish", tmp_path) == 0
    assert contents(tmp_path / "out") == contents(servable)
    assert verify.main([str(tmp_path / "out")]) == 0
    assert (tmp_path / "current").read_text() == "out\n"


def test_an_output_folder_that_holds_something_else_is_refused(trained, servable, tmp_path, capsys):
    """Where it holds another servable, --fresh moves that aside, and never the run."""
    shutil.copytree(servable, out := tmp_path / "x" / "out")
    assert export(trained, out, "--precision", "int8") == 2
    assert "another servable, of commit" in (said := capsys.readouterr().err)
    assert said.endswith("; --fresh moves it aside, --out names another folder\n")
    assert export(trained, out) == 0, "it is there already"
    assert contents(out) == contents(servable)
    assert export(trained, out, "--precision", "int8", "--fresh") == 0
    assert contents(out.with_name("out.1")) == contents(servable)
    assert read_servable(out).precision == "int8"
    assert export(trained, trained.run_dir, "--fresh") == 2
    assert "holds the run" in capsys.readouterr().err
    shutil.rmtree(out.parent)
    (tmp_path / "mine.txt").write_text("kept")
    assert export(trained, tmp_path) == 2
    assert "has other files than those of an export" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    assert export(trained, tmp_path / "a" / "b", "--publish", tmp_path) == 2
    assert "not a folder directly below" in capsys.readouterr().err


RECORD = ExportRecord(source="0" * 16, precision="float32", negatives=1.0, memory=1 << 20)


def test_an_unfinished_export_of_other_arguments_is_refused(tmp_path):
    claim_folder(tmp_path / "out", RECORD, Files())
    claim_folder(tmp_path / "out", RECORD, Files())
    with pytest.raises(ValueError, match="out holds an unfinished export with other arguments; --fresh moves"):
        claim_folder(tmp_path / "out", RECORD.model_copy(update={"precision": "int8"}), Files())


def test_a_commit_with_another_number_of_rows_is_damaged(tmp_path):
    held = SimpleNamespace(run_dir=tmp_path, number=3)
    opened = SimpleNamespace(held=held, manifest=SimpleNamespace(live_rows=1000))
    with pytest.raises(Damaged, match="commit 3 has 7 rows, expected 1,000; `pipeline verify RUN` says more"):
        check_num_rows(opened, 7)


def test_a_prior_correction_is_a_share(capsys):
    with pytest.raises(SystemExit):
        export_main(["run", "--out", "out", "--prior-correction", "2"])
    assert "argument --prior-correction: expected a share above 0 and up to 1, got 2" in capsys.readouterr().err


def test_rows_that_are_not_those_of_the_commit_are_damaged(tmp_path):
    machine = Machine(tmp_path / "table.zarr", 12, 0)
    machine.train(range(10))
    manifest = machine.commit()
    machine.close()
    forged = [chunk._replace(rows_checksum="0" * 16) for chunk in manifest.chunks]
    table = TableFormat(ROW, manifest.chunk_rows, ONE_SHARD)
    with pytest.raises(Damaged, match="its checksum is not that of the commit; `pipeline verify RUN` says more"):
        rows_of_chunks(tmp_path / "table.zarr", table, forged, None)
