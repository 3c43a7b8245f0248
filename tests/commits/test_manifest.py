"""Manifests: every bit of them counts, and none is left that names a file which is gone."""

import dataclasses
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import depth

from pipeline.commits.manifest import ChunkState, Commits, Manifest, join_parts, metadata_files
from pipeline.commits.reading import hold
from pipeline.storage.files import Damaged, Files, checksum
from pipeline.storage.layout import RowLayout

HEX = st.text("0123456789abcdef", min_size=16, max_size=16)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
ROW = RowLayout(3, True).describe()


@st.composite
def manifests(draw):
    """Any that a run could publish."""
    num_shards, chunk_rows = draw(st.integers(1, 5)), draw(st.integers(1, 2**40))
    numbers = sorted(draw(st.sets(st.integers(0, 2**20), max_size=4)))
    stale = [draw(st.integers(0, chunk_rows - 1)) for _ in numbers]
    chunks = tuple(ChunkState(n, s, draw(HEX), draw(HEX)) for n, s in zip(numbers, stale, strict=True))
    maximum = 1 + max(numbers, default=0) // num_shards
    return Manifest(
        number=draw(st.integers(1, 2_000_000)), name=draw(st.sampled_from([None, "best"])), num_shards=num_shards,
        tails=tuple(chunk_rows * (maximum + draw(st.integers(0, 9))) for _ in range(num_shards)),
        live_rows=sum(chunk_rows - s for s in stale), row=ROW, chunk_rows=chunk_rows, chunks=chunks,
        metadata=dict.fromkeys(metadata_files(num_shards), draw(HEX)),
        dense=tuple(draw(st.lists(HEX, min_size=1, max_size=3))),
        state=draw(st.dictionaries(st.text(max_size=9), VALUES, max_size=3)),
    )  # fmt: skip


def made(number, name=None, chunks=()):
    states = tuple(ChunkState(c, 0, "a" * 16, "b" * 16) for c in chunks)
    described = dict.fromkeys(metadata_files(1), "c" * 16)
    return Manifest(number, name, 1, (32,), 4 * len(states), ROW, 4, states, described, ("0" * 16,), {})


@pytest.fixture
def commits(tmp_path):
    commits = Commits(tmp_path, Files(), keep=2)
    commits.folder.mkdir()
    return commits


def publish(commits, *manifests):
    for m in manifests:
        dense = commits.write_dense(m.number, {"w": np.full(3, m.number, np.float32)})
        commits.publish(dataclasses.replace(m, dense=(dense,)))


@settings(deadline=None, max_examples=60)
@given(manifests())
def test_a_manifest_comes_back_as_it_was(tmp_path_factory, manifest):
    commits = Commits(tmp_path_factory.mktemp("run"), Files(), keep=2)
    file = commits.manifest_file(manifest.number)
    file.parent.mkdir()
    file.write_bytes(manifest.content())
    assert Manifest.of(file) == manifest
    assert commits.numbers() == [manifest.number]


@pytest.mark.deep
def test_a_changed_byte_of_a_manifest_is_detected(commits):
    publish(commits, made(1, "best", [0, 7]))
    file = commits.manifest_file(1)
    content = file.read_bytes()
    for at in range(len(content)):
        changes = (content[at] ^ 1, content[at] ^ 32, 0xFF, ord(" "), ord("0"))
        for changed in changes if depth.PROVES else changes[at % 2 :][:1]:
            if changed != content[at]:
                file.write_bytes(content[:at] + bytes([changed]) + content[at + 1 :])
                with pytest.raises(Damaged, match=r"000001\.json: .*verify RUN"):
                    Manifest.of(file)
    for other in (b"", b"{}", b"[]", b"null", content[:-1], content + b"\n", content[:40]):
        file.write_bytes(other)
        with pytest.raises(Damaged):
            Manifest.of(file)


IMPOSSIBLE = [
    {"num_shards": 0}, {"num_shards": 2}, {"tails": ()}, {"tails": (31,)}, {"tails": (28,)}, {"live_rows": 9},
    {"row": {}}, {"row": ROW | {"tag": 10**12}}, {"row": ROW | {"embedding": [2, 2**40]}}, {"row": ROW | {"tag": "5"}},
    {"chunk_rows": 0}, {"chunk_rows": 2**62}, {"dense": ()}, {"dense": ("../x",)}, {"name": "../best"},
    {"metadata": {}}, {"metadata": dict.fromkeys([*metadata_files(1), "../x"], "c" * 16)}, {"number": 0},
    {"chunks": (ChunkState("7", 0, "a" * 16, "b" * 16),)}, {"chunks": (ChunkState(-1, 0, "a" * 16, "b" * 16),)},
    {"chunks": (ChunkState(8, 0, "a" * 16, "b" * 16),) * 2}, {"chunks": (ChunkState(7, 4, "a" * 16, "b" * 16),)},
    {"state": None}, {"more": 1},
]  # fmt: skip


@pytest.mark.parametrize("changes", IMPOSSIBLE, ids=lambda changes: next(iter(changes)))
def test_impossible_values_with_a_right_checksum_are_refused(commits, changes):
    publish(commits, made(1, chunks=[0, 7]))
    file = commits.manifest_file(1)
    values = json.loads(file.read_bytes())["commit"]
    assert Manifest.of(file).chunks[-1].number == 7
    text = json.dumps(values | changes)
    file.write_bytes(f'{{"checksum": "{checksum(text.encode())}", "commit": {text}}}\n'.encode())
    with pytest.raises(Damaged, match=r"000001\.json: .*; `pipeline verify"):
        Manifest.of(file)


def test_what_a_user_puts_among_the_commits_stays(commits):
    publish(commits, made(1), made(2))
    others = ["notes.txt", "7.json", "000009.JSON", "my.json", "000001.safetensors.bak", "000003.json.orig"]
    for name in others:
        (commits.folder / name).write_text("mine")
    commits.prune(commits.kept()[-1:])
    assert sorted(os.listdir(commits.folder)) == sorted([*others, "000002.json", "000002.safetensors"])


def test_a_manifest_under_another_number_is_refused(commits):
    publish(commits, made(1))
    os.rename(commits.manifest_file(1), commits.manifest_file(2))
    with pytest.raises(Damaged, match=r"000002\.json"):
        commits.kept()


def test_a_changed_dense_state_is_refused(commits):
    publish(commits, made(1))
    newest = commits.kept()[-1]
    assert commits.load_dense(newest)["w"].tolist() == [1, 1, 1]
    file = commits.dense_file(1)
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        file.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(Damaged, match=rf"{file}: its checksum is not that of commit 1"):
            commits.load_dense(newest)


def test_commits_are_ordered_by_number_and_none_exists_at_first(commits):
    assert commits.kept() == []
    publish(commits, *(made(n) for n in (9, 10, 999_999, 1_000_000)))
    assert commits.kept()[-1].number == 1_000_000
    assert commits.numbers() == [9, 10, 999_999, 1_000_000]


@pytest.mark.parametrize(
    ("names", "give_up", "kept"),
    [
        ({}, False, [4, 5]), ({}, True, [5]), ({2: "best"}, False, [2, 4, 5]), ({2: "best"}, True, [2, 5]),
        ({1: "best", 3: "best"}, False, [3, 4, 5]), ({1: "best", 3: "best"}, True, [3, 5]), ({5: "best"}, True, [5]),
    ],
)  # fmt: skip
def test_the_last_commits_and_the_last_of_each_name_are_kept(commits, names, give_up, kept):
    publish(commits, *(made(n, names.get(n)) for n in range(1, 6)))
    assert [m.number for m in commits.kept(give_up)] == kept


def test_pruning_deletes_manifests_before_the_files_they_name(commits):
    publish(commits, *(made(n) for n in (1, 2, 3)))
    (commits.folder / "000003.json.partial").write_bytes(b"torn")
    (commits.folder / "000004.safetensors").write_bytes(b"of a commit that was not published")
    calls = []

    class Watched:
        def __getattr__(self, name):
            def call(*args):
                calls.append((name, os.path.basename(args[0]) if name == "unlink" else ""))
                return getattr(os, name)(*args)

            return call

    commits.files.system = Watched()
    commits.prune(commits.kept()[-1:])
    assert sorted(os.listdir(commits.folder)) == ["000003.json", "000003.safetensors"]
    names = [call for call in calls if call[0] in ("unlink", "fsync")]
    synced = names.index(("fsync", ""))
    assert {name for _, name in names[:synced]} == {"000001.json", "000002.json"}
    assert not [name for _, name in names[synced:] if name.endswith(".json")]
    assert commits.kept()[-1].number == 3


def in_parts(num_shards=4, deals=((1, 3), (0, 2))):
    """A commit, as processes report it that have these shards each: a chunk, five rows, and a replica for each."""
    states = [ChunkState(shard + num_shards, shard, f"{shard:016}", "b" * 16) for shard in range(num_shards)]
    parts = []
    for process, owned in enumerate(deals):
        names = [f"{shard}/{name}" for shard in owned for name in ("zarr.json", "rows/zarr.json", "keys/zarr.json")]
        parts.append(
            Manifest(
                7, None, num_shards, tuple(16 if shard in owned else 0 for shard in range(num_shards)),
                sum(8 - states[shard].stale for shard in owned), {"tag": 9}, 8,
                tuple(states[shard] for shard in sorted(owned)),
                dict.fromkeys(["zarr.json", *names] if 0 in owned else names, "c" * 16), (f"{process:016}",), {},
            )
        )  # fmt: skip
    return parts


def test_a_joined_commit_has_the_parts_that_processes_reported():
    parts = in_parts()
    whole = join_parts(parts)
    assert [chunk.number for chunk in whole.chunks] == [4, 5, 6, 7]
    assert (whole.tails, whole.live_rows, whole.shards) == ((16,) * 4, 4 * 8 - 6, {0, 1, 2, 3})
    assert whole.dense == ("0" * 16, "0" * 15 + "1"), "replicas are not in the order of the parts"
    assert len(whole.metadata) == 13
    for part, owned in zip(parts, ((1, 3), (0, 2)), strict=True):
        assert dataclasses.replace(whole.part(owned), dense=part.dense) == part
    assert whole.part(range(4)) == whole
    nothing = whole.part(())
    assert (nothing.chunks, nothing.live_rows, nothing.tails, nothing.metadata) == ((), 0, (0,) * 4, {})


@pytest.mark.parametrize("change", [{"number": 8}, {"row": {"tag": 8}}, {"chunk_rows": 4}, {"num_shards": 8}])
def test_parts_of_different_commits_are_refused(change):
    one, other = in_parts()
    with pytest.raises(ValueError, match=f"different values of {next(iter(change))}"):
        join_parts([one, dataclasses.replace(other, **change)])


@pytest.mark.parametrize("deals", [((1, 3), (0,)), ((1, 3), (0, 2, 3))], ids=["in none", "in two"])
def test_a_commit_needs_each_shard_exactly_once(deals):
    with pytest.raises(ValueError, match=rf"commit 7: .*: {2 if len(deals[1]) == 1 else 3}$"):
        join_parts(in_parts(deals=deals))


def test_each_replica_of_a_kept_commit_keeps_its_own_dense_state(commits):
    for number in (1, 2):
        digests = [commits.write_dense(number, {"w": np.full(3, 10 * number + r)}, r) for r in range(3 - number)]
        commits.publish(dataclasses.replace(made(number), dense=tuple(digests)))
    (commits.folder / "000002-5.safetensors").write_bytes(b"of no replica")
    kept = commits.kept()
    assert [commits.load_dense(kept[0], replica)["w"][0] for replica in (0, 1)] == [10, 11]
    commits.prune(kept)
    names = ["000001-1.safetensors", "000001.json", "000001.safetensors", "000002.json", "000002.safetensors"]
    assert sorted(os.listdir(commits.folder)) == names
    file = commits.dense_file(1, 1)
    file.write_bytes(commits.dense_file(1).read_bytes())
    with pytest.raises(Damaged, match=rf"{file}: its checksum"):
        commits.load_dense(kept[0], 1)
    commits.prune(kept[1:])
    assert sorted(os.listdir(commits.folder)) == names[3:]


def test_a_dense_part_that_is_no_safetensors_file_is_damaged(commits):
    digest = commits.files.write(commits.dense_file(1), [b"no tensors at all"])
    with pytest.raises(Damaged, match=r"000001\.safetensors: it is not a safetensors file"):
        commits.load_dense(dataclasses.replace(made(1), dense=(digest,)))


def test_a_run_without_a_commit_is_named(tmp_path):
    (tmp_path / "commits").mkdir()
    with pytest.raises(ValueError, match=f"{tmp_path} has no commit yet; train until the first one is taken"):
        hold(tmp_path)


def test_a_missing_best_commit_is_refused_with_those_there_are(tmp_path, commits):
    publish(commits, made(1), made(2))
    with pytest.raises(ValueError, match=r"no best commit, .* \(it has 1, 2\); use last, or a number"):
        hold(tmp_path, "best")
