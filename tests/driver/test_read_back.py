"""What is read back from a run directory is checked; what is somebody else's there stays."""

import json
import os
import shutil
import sys

import pyarrow.parquet as pq
import pytest
from conftest import make_workflow
from support.depth import some
from support.faults.killed_after_commit import kill_after
from support.runs.harness import THREE_TIERS, make_driver

from pipeline.storage.durable import own_checksum
from pipeline.storage.files import Damaged, checksum
from pipeline.verify import verify
from pipeline.workflow import Commit


@pytest.fixture(scope="module")
def workflow(data_root):
    return make_workflow(data_root).model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.fixture(scope="module")
def finished(workflow, tmp_path_factory):
    """The folder of a run that ended, and its result. Tests work on copies."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    run_dir.mkdir()
    return run_dir, make_driver(workflow, run_dir, **THREE_TIERS).run()


@pytest.fixture(scope="module")
def killed(workflow, tmp_path_factory):
    """By how many commits it was killed after: the folder of a run. Tests work on copies."""
    folders = {commits: tmp_path_factory.mktemp("killed") / "run" for commits in (1, 2)}
    with pytest.MonkeyPatch.context() as patch:
        for commits, run_dir in folders.items():
            kill_after(commits, workflow, run_dir, patch)
    return folders


def copy(run_dir, to):
    return shutil.copytree(run_dir, to, dirs_exist_ok=True)


@pytest.mark.parametrize("name", ["model.safetensors", "metrics.jsonl", "workflow.json", "result.json"])
@pytest.mark.parametrize("how", some(["changed", "missing"], "changed"))
def test_damaged_outputs_are_found_and_written_again(workflow, finished, tmp_path, capsys, name, how):
    first = finished[1]
    copy(finished[0], tmp_path)
    file = tmp_path / name
    content = file.read_bytes()
    assert verify(tmp_path) == 0
    file.write_bytes(content.replace(b"0.", b"1.") if name != "model.safetensors" else content[:-1] + b"\0")
    if how == "missing":
        file.unlink()
    wrong = name in ("model.safetensors", "metrics.jsonl") or (name == "result.json" and how == "changed")
    assert verify(tmp_path) == verify(tmp_path, repair=True) == wrong
    assert (f"{file}: " in capsys.readouterr().out) == wrong
    again = make_driver(workflow, tmp_path, **THREE_TIERS).run()
    assert all(again[key] == first[key] for key in ("fingerprint", "auc", "epochs", "files"))
    assert name == "result.json" or file.read_bytes() == content
    assert json.loads((tmp_path / "result.json").read_text()) == again
    assert verify(tmp_path) == 0


RESULTS = {
    "no files": lambda r: r.pop("files"),
    "no commit": lambda r: r.pop("commit"),
    "no fingerprint": lambda r: r.pop("fingerprint"),
    "no tiers": lambda r: r.pop("tiers"),
    "no hits": lambda r: r["tiers"]["host"].pop("hits"),
    "epochs": lambda r: r.update(epochs=5),
    "name": lambda r: r.update(name=[1]),
    "workers": lambda r: r.update(workers=[{"keys": 1}]),
    "auc": lambda r: r.update(auc=0.99),
    "examples": lambda r: r.update(examples=r["examples"] + 1),
    "auc of the test": lambda r: r["epochs"][-1].update(auc=0.99) or r.update(auc=0.99),
    "another test": lambda r: r["epochs"].append({**r["epochs"][-1], "auc": 0.99}) or r.update(auc=0.99),
}


@pytest.mark.parametrize("what", RESULTS)
def test_a_forged_result_is_reported_and_written_again(workflow, finished, tmp_path, capsys, what):
    run_dir = copy(finished[0], tmp_path)
    result = json.loads((run_dir / "result.json").read_text())
    RESULTS[what](result)
    (run_dir / "result.json").write_text(json.dumps(result | {"checksum": own_checksum(result)}))
    assert verify(run_dir) == 1
    assert "result.json" in capsys.readouterr().out
    again = make_driver(workflow, run_dir, **THREE_TIERS).run()
    assert all(again[key] == finished[1][key] for key in ("fingerprint", "auc", "epochs", "files", "data"))
    assert verify(run_dir) == 0


def test_a_result_is_rewritten_only_for_the_data_of_its_metrics(workflow, finished, tmp_path):
    run_dir, root = copy(finished[0], tmp_path / "run"), tmp_path / "data"
    shutil.copytree(workflow.data.root, root)
    pq.write_table(pq.read_table(root / "test.parquet").slice(2), root / "test.parquet")
    (run_dir / "result.json").unlink()
    elsewhere = workflow.model_copy(update={"data": workflow.data.model_copy(update={"root": root})})
    with pytest.raises(ValueError, match="its results are not those of this workflow"):
        make_driver(elsewhere, run_dir, **THREE_TIERS)
    assert make_driver(workflow, run_dir, **THREE_TIERS).run()["data"] == finished[1]["data"]


def test_verify_names_a_chunk_longer_than_memory(finished, tmp_path, capsys):
    run_dir = copy(finished[0], tmp_path)
    chunk = next((run_dir / "table.zarr" / "rows").glob("c.*"))
    os.truncate(chunk, 1 << 42)
    assert verify(run_dir) == 1
    assert f"{chunk}: its checksum is wrong ({1 << 42:,} bytes)" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["runs_evil.payload.X", "os.system", "runs_evil.payload:X", ""])
def test_a_class_that_only_the_run_names_is_never_imported(workflow, killed, tmp_path, monkeypatch, kind):
    copy(killed[1], tmp_path / "run")
    (tmp_path / "runs_evil").mkdir()
    (tmp_path / "runs_evil" / "payload.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    forge(tmp_path / "run", lambda commit: commit["state"]["workflow"]["model"].update(kind=kind))
    before = set(sys.modules)
    with pytest.raises(ValueError, match=r'model\.kind: was "' + kind):
        make_driver(workflow, tmp_path / "run", **THREE_TIERS)
    assert not (tmp_path / "ran").exists()
    assert set(sys.modules) == before


def forge(run_dir, change):
    """Change values of the newest manifest, and make its checksum right."""
    file = max((run_dir / "commits").glob("*.json"))
    commit = json.loads(file.read_bytes())["commit"]
    change(commit)
    text = json.dumps(commit)
    file.write_bytes(f'{{"checksum": "{checksum(text.encode())}", "commit": {text}}}\n'.encode())


FORGED = {
    "empty": lambda s: s.clear(),
    "without data": lambda s: s.pop("data"),
    "no position": lambda s: s.pop("position"),
    "batch -1": lambda s: s["position"].update(batch=-1),
    "batch 1,000,000": lambda s: s["position"].update(batch=1_000_000),
    "another batch": lambda s: s["position"].update(batch=s["position"]["batch"] + 1),
    "epoch 7": lambda s: s["position"].update(epoch=7),
    "split": lambda s: s["position"].update(split="../x"),
    "speed": lambda s: s["speed"].update(seconds_per_read=0),
    "tiers": lambda s: s["tiers"]["trained"].pop("keys"),
    "epochs": lambda s: s["epochs"].append({"epoch": 1, "split": "validation"}),
    "disk": lambda s: s["disk"].update(commits="many"),
    "trained": lambda s: s.update(trained=1e300),
    "workflow": lambda s: s.update(workflow={"model": {"kind": "a.b"}}),
    "model": lambda s: s["workflow"].update(model=[]),
    "deep": lambda s: s.update(seconds=[[[[[[]]]]]]),
    "spans of a file": lambda s: s["data"]["train"]["files"][0].update(spans=[[0, 1]]),
    "spans": lambda s: s["data"]["train"].update(spans=["a"]),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_state_that_no_run_can_have_written_is_refused(workflow, killed, tmp_path, what):
    copy(killed[1], tmp_path)
    forge(tmp_path, lambda commit: FORGED[what](commit["state"]))
    with pytest.raises((Damaged, ValueError), match=r"state\.|cannot be read|model\.kind"):
        make_driver(workflow, tmp_path, **THREE_TIERS)
    # What depends on workflow and data is for the run to say.
    assert verify(tmp_path) == (what not in ("batch 1,000,000", "another batch", "epoch 7", "workflow", "model"))


LINKED = ["commits", "table.zarr", "table.zarr/rows", "table.zarr/keys"]


@pytest.mark.parametrize("folder", LINKED)
@pytest.mark.parametrize("by", ["run", "verify"])
def test_a_linked_folder_is_refused_and_its_target_is_unchanged(workflow, killed, tmp_path, folder, by):
    run_dir, elsewhere = copy(killed[2], tmp_path / "run"), tmp_path / "elsewhere"
    os.rename(run_dir / folder, elsewhere)
    mine = [elsewhere / name for name in ("notes.txt", "c.99", "c.99.0", "000009.json", "zarr.json.partial")]
    for file in mine:
        file.write_text("mine")
    (run_dir / folder).symlink_to(elsewhere)
    before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
    with pytest.raises(ValueError, match=rf"{folder} is a symbolic link \(to {elsewhere}\)"):
        make_driver(workflow, run_dir, **THREE_TIERS) if by == "run" else verify(run_dir, repair=True)
    assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before


def test_files_of_a_user_in_a_run_directory_survive_a_resume(workflow, finished, killed, tmp_path):
    copy(killed[2], tmp_path)
    names = ["notes.txt", "x.partial", "reserve.txt", "reserved", "commits/notes.json", "commits/1.json"]
    names += ["table.zarr/notes", "table.zarr/rows/c.x.0", "table.zarr/keys/note.partial", "table.zarr/rows/c.1.0.bak"]
    # Digits, but not those of names that the run gives.
    names += ["commits/٠٠٠٠٠٩.json", "table.zarr/rows/c.٩.0", "reserve-٩"]
    for name in names:
        (tmp_path / name).write_text("mine")
    (tmp_path / "table.zarr/rows/c.999999.0").mkdir()
    assert make_driver(workflow, tmp_path, **THREE_TIERS).run()["fingerprint"] == finished[1]["fingerprint"]
    assert verify(tmp_path, repair=True) == 0
    assert [(tmp_path / name).read_text() for name in names] == ["mine"] * len(names)
    assert (tmp_path / "table.zarr/rows/c.999999.0").is_dir()


def test_space_is_not_reserved_through_a_link(workflow, finished, killed, tmp_path):
    run_dir, mine = copy(killed[2], tmp_path / "run"), tmp_path / "mine"
    mine.write_text("mine")
    (run_dir / "reserve").unlink()
    (run_dir / "reserve").symlink_to(mine)
    assert make_driver(workflow, run_dir, **THREE_TIERS).run()["fingerprint"] == finished[1]["fingerprint"]
    assert mine.read_text() == "mine"
