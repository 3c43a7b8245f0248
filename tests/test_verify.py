"""`pipeline verify`: what is wrong is named, with the commits that it harms; --repair goes back."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import make_workflow
from support.data.row_files import flip
from support.runs.harness import THREE_TIERS, make_driver

from pipeline.commits.manifest import Manifest
from pipeline.storage.lock import RunLock
from pipeline.storage.log import rows_file
from pipeline.storage.shards import Shards
from pipeline.verify import main
from pipeline.workflow import Commit


@pytest.fixture(scope="module")
def workflow(data_root):
    return make_workflow(data_root).model_copy(update={"commit": Commit(every_blocks=2, keep=3)})


@pytest.fixture(scope="module")
def made(workflow, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("made")
    return run_dir, make_driver(workflow, run_dir, **THREE_TIERS).run()


@pytest.fixture
def run_dir(made, tmp_path):
    """A copy of a finished run of three commits and more."""
    shutil.copytree(made[0], tmp_path / "run")
    return tmp_path / "run"


SHARDS = Shards.all(4)


@pytest.fixture(scope="module")
def made_in_shards(workflow, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("sharded")
    return run_dir, make_driver(workflow, run_dir, shards=SHARDS, **THREE_TIERS).run()


@pytest.fixture
def sharded_dir(made_in_shards, tmp_path):
    shutil.copytree(made_in_shards[0], tmp_path / "sharded")
    return tmp_path / "sharded"


def verify(capsys, run_dir, *flags):
    code = main([str(run_dir), *flags])
    out, err = capsys.readouterr()
    return code, out, err


def manifests(run_dir):
    return [Manifest.of(path) for path in sorted((run_dir / "commits").glob("*.json"))]


def only_in_newest(run_dir):
    *older, newest = manifests(run_dir)
    shared = {c.number for m in older for c in m.chunks}
    return newest, [c.number for c in newest.chunks if c.number not in shared]


def test_a_whole_run_is_reported_whole(capsys, run_dir):
    numbers = [m.number for m in manifests(run_dir)]
    assert len(numbers) >= 3
    code, out, err = verify(capsys, run_dir)
    shown = ", ".join(map(str, numbers))
    assert (code, out, err) == (0, f"{len(numbers)} of {len(numbers)} commits are intact: {shown}\n", "")
    assert verify(capsys, run_dir, "--repair")[0] == 0


def test_a_damaged_row_is_named_with_its_file_and_commits(capsys, run_dir):
    newest, chunks = only_in_newest(run_dir)
    file = run_dir / "table.zarr" / "rows" / f"c.{chunks[0]}.0"
    flip(file, len(file.read_bytes()) // 4 + 20)
    code, out, _ = verify(capsys, run_dir)
    assert code == 1
    assert f"{file}: its checksum is wrong ({file.stat().st_size:,} bytes) (commits {newest.number})" in out
    assert f"{len(manifests(run_dir)) - 1} of {len(manifests(run_dir))} commits are intact: " in out


def cut(file):
    file.write_bytes(file.read_bytes()[:-3])


DAMAGES = {
    "rows": ("table.zarr/rows/c.{chunk}.0", lambda file: flip(file, 7)),
    "keys": ("table.zarr/keys/c.{chunk}", lambda file: flip(file, 7)),
    "lost rows": ("table.zarr/rows/c.{chunk}.0", Path.unlink),
    "cut keys": ("table.zarr/keys/c.{chunk}", cut),
    "dense part": ("commits/{commit:06}.safetensors", lambda file: flip(file, 100)),
    "lost dense part": ("commits/{commit:06}.safetensors", Path.unlink),
    "manifest": ("commits/{commit:06}.json", lambda file: flip(file, 200)),
}
"""A file of the newest commit alone, and what is done to it."""


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_found_and_a_repaired_run_goes_on(capsys, workflow, made, run_dir, what):
    newest, chunks = only_in_newest(run_dir)
    name, damage = DAMAGES[what]
    damage(run_dir / name.format(chunk=chunks[-1], commit=newest.number))
    before = {p.name for p in (run_dir / "commits").iterdir()}
    assert verify(capsys, run_dir)[0] == 1
    assert {p.name for p in (run_dir / "commits").iterdir()} == before, "looking changed something"
    code, out, _ = verify(capsys, run_dir, "--repair")
    assert code == 0
    assert "went back to commit " in out
    assert manifests(run_dir)[-1].number < newest.number
    assert verify(capsys, run_dir)[0] == 0
    assert make_driver(workflow, run_dir, **THREE_TIERS).run()["fingerprint"] == made[1]["fingerprint"]
    assert verify(capsys, run_dir)[0] == 0


def test_repair_changes_nothing_when_no_commit_is_whole(capsys, run_dir):
    for file in (run_dir / "commits").glob("*.safetensors"):
        flip(file, 50)
    before = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    code, out, err = verify(capsys, run_dir, "--repair")
    assert code == 1
    assert "0 of " in out
    assert "no commit is intact: nothing was changed; start over with --fresh" in err
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == before


def test_a_file_that_no_commit_names_is_listed_and_is_no_damage(capsys, workflow, run_dir):
    strangers = [run_dir / "table.zarr" / "rows" / "c.99999.0", run_dir / "commits" / "000999.safetensors"]
    strangers.append(run_dir / "notes.txt")
    for file in strangers:
        file.write_bytes(b"x")
    code, out, _ = verify(capsys, run_dir)
    assert code == 0
    assert all(f"{file}: no commit names it" in out for file in strangers)
    make_driver(workflow, run_dir, **THREE_TIERS).run()
    assert [file.exists() for file in strangers] == [False, False, True]


def test_a_damaged_table_description_is_found_and_repaired(capsys, run_dir):
    file = run_dir / "table.zarr" / "rows" / "zarr.json"
    before = file.read_bytes()
    flip(file, 30)
    code, out, _ = verify(capsys, run_dir)
    assert code == 1
    assert f"{file}: its checksum is wrong" in out
    assert verify(capsys, run_dir, "--repair")[0] == 0
    assert file.read_bytes() == before
    assert json.loads((run_dir / "result.json").read_text())["fingerprint"]


def test_a_folder_without_a_run_and_a_run_in_use_are_refused(capsys, tmp_path, run_dir):
    code, _, err = verify(capsys, tmp_path)
    assert code == 2
    assert err.startswith(f"error: {tmp_path} holds no run")
    with RunLock(run_dir):
        code, _, err = verify(capsys, run_dir)
    assert code == 2
    assert "is in use by process" in err


def test_a_run_without_a_commit_is_reported_as_such(capsys, tmp_path):
    (tmp_path / "run" / "commits").mkdir(parents=True)
    code, out, _ = verify(capsys, tmp_path / "run")
    assert code == 1
    assert "has no commit" in out


def test_a_sound_run_of_several_shards_has_its_fingerprint(capsys, made, made_in_shards, sharded_dir):
    assert made_in_shards[1]["fingerprint"] == made[1]["fingerprint"]
    code, out, err = verify(capsys, sharded_dir)
    assert (code, out.count("\n"), err) == (0, 1, "")
    assert {chunk.number % 4 for chunk in manifests(sharded_dir)[-1].chunks} == {0, 1, 2, 3}


def test_a_damaged_shard_is_found_and_a_repaired_run_goes_on(capsys, workflow, made_in_shards, sharded_dir):
    newest, chunks = only_in_newest(sharded_dir)
    file = rows_file(sharded_dir / "table.zarr", chunks[-1], 4)
    flip(file, 7)
    stranger = sharded_dir / "table.zarr" / "2" / "rows" / "c.99999.0"
    stranger.write_bytes(b"x")
    code, out, _ = verify(capsys, sharded_dir)
    assert code == 1
    assert f"{file}: its checksum is wrong" in out
    assert f"{stranger}: no commit names it" in out
    assert verify(capsys, sharded_dir, "--repair")[0] == 0
    assert manifests(sharded_dir)[-1].number < newest.number
    assert not stranger.exists()
    driver = make_driver(workflow, sharded_dir, shards=SHARDS, **THREE_TIERS)
    assert driver.run()["fingerprint"] == made_in_shards[1]["fingerprint"]


def test_a_missing_shard_is_one_finding_that_names_it(capsys, sharded_dir):
    folder = sharded_dir / "table.zarr" / "2"
    shutil.rmtree(folder)
    before = {p: p.read_bytes() for p in sharded_dir.rglob("*") if p.is_file()}
    code, out, err = verify(capsys, sharded_dir, "--repair")
    assert code == 1
    first, *others = out.splitlines()
    numbers = ", ".join(str(m.number) for m in manifests(sharded_dir))
    assert first == f"{folder}: is missing, and all of shard 2 of 4 with it (commits {numbers})"
    assert len(others) == 1
    assert others[0].startswith("0 of ")
    assert "no commit is intact" in err
    assert {p: p.read_bytes() for p in sharded_dir.rglob("*") if p.is_file()} == before
