"""Checking the files of a run for damage: every checksum, then every tag and key, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.commits.manifest import RESERVE_NAME, ChunkState, Commits, Manifest, stem
from pipeline.data.side_files import FOLDER, copy_name
from pipeline.kernels.tag import first_wrong_tag
from pipeline.records import RESERVED, U32, U64
from pipeline.storage.files import checksum, checksum_of
from pipeline.storage.layout import row_keys
from pipeline.storage.lists import FOLDER as LISTS
from pipeline.storage.log import keys_file, metadata, rows_file
from pipeline.storage.shards import shard_folder

OURS = (
    "commits", "table.zarr", "scores", "workflow.json", "metrics.jsonl", "model.safetensors", "result.json",
    "live.jsonl", "report.html", "report.html.partial", "tensorboard", "mlflow_run",
    "init_from.json", FOLDER, LISTS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Defect:
    """A file that differs from the record in a commit."""

    file: Path
    what: str
    commits: tuple[int, ...]
    """Numbers of the affected commits."""


def read_manifests(commits: Commits) -> tuple[list[Manifest], list[Defect]]:
    """Return the readable manifests, in ascending order, and a finding for each of the others."""
    manifests, findings = [], []
    for number in commits.numbers():
        file = commits.manifest_file(number)
        try:
            manifests.append(Manifest.of(file))
        except OSError as error:
            findings.append(Defect(file, str(error).removeprefix(f"{file}: "), (number,)))
    return manifests, findings


def missing_shards(run_dir: Path, manifests: Sequence[Manifest]) -> Iterator[tuple[int, Defect]]:
    """Yield the shards that have no folder. A table with a single shard has no shard folder."""
    num = manifests[-1].num_shards if manifests else 1
    for shard in range(num if num > 1 else 0):
        folder = shard_folder(run_dir / "table.zarr", shard, num)
        if not folder.is_dir():
            what = f"is missing, and all of shard {shard} of {num} with it"
            yield shard, Defect(folder, what, tuple(m.number for m in manifests))


def check_small_files(
    run_dir: Path, commits: Commits, manifests: Sequence[Manifest], missing: Collection[int] = ()
) -> Iterator[Defect]:
    """Check the dense states of each commit, its copies of feature files, its lists, and the table's Zarr metadata,
    which must match one of the commits. The metadata of `missing` shards is skipped."""
    expected: list[tuple[Path, set[str], tuple[int, ...]]] = []
    expected += [
        (commits.dense_file(m.number, replica), {digest}, (m.number,))
        for m in manifests
        for replica, digest in enumerate(m.dense)
    ]
    for m in manifests:
        digests = m.state.get("side_files", {})
        expected += [(run_dir / FOLDER / copy_name(digest), {digest}, (m.number,)) for digest in digests.values()]
        expected += [(path, {digest}, (m.number,)) for path, digest in m.final_lists(run_dir)]
    for name in _without(manifests[-1], missing).metadata if manifests else ():
        known = {m.metadata[name] for m in manifests} | {described[name] for described in _described(manifests[-1])}
        expected.append((run_dir / "table.zarr" / name, known, ()))
    for file, known, numbers in expected:
        if not file.is_file():
            yield Defect(file, "is missing", numbers)
        elif checksum_of(file) not in known:
            yield Defect(file, "its checksum is wrong", numbers)


def _described(manifest: Manifest) -> Iterator[dict[str, str]]:
    """Yield the checksums of the metadata as the installed version of Zarr would write it, for this commit and for an
    empty log: another version may have written different bytes."""
    for tails in (manifest.tails, [0] * manifest.num_shards):
        described = metadata(manifest.table, tails)
        yield {name: checksum(content) for name, content in described.items()}


def older_descriptions(run_dir: Path, manifests: Sequence[Manifest]) -> Iterator[Path]:
    """Yield Zarr metadata files of an older commit. They are harmless: a commit replaces them as its last step."""
    for name, newest in (manifests[-1].metadata if manifests else {}).items():
        file = run_dir / "table.zarr" / name
        if file.is_file() and checksum_of(file) != newest:
            yield file


def _without(manifest: Manifest, missing: Collection[int]) -> Manifest:
    return manifest.part(set(range(manifest.num_shards)) - set(missing))


def named_chunks(manifests: Sequence[Manifest], missing: Collection[int] = ()) -> dict[ChunkState, tuple[int, ...]]:
    """Return every chunk named by a commit, in log order, with the numbers of those commits; chunks of `missing` shards
    are skipped. A chunk that two commits describe differently appears twice."""
    named: dict[ChunkState, tuple[int, ...]] = {}
    for m in manifests:
        for c in _without(m, missing).chunks:
            # The number of stale rows may differ between commits.
            chunk = c._replace(stale=0)
            named[chunk] = (*named.get(chunk, ()), m.number)
    return dict(sorted(named.items()))


def check_chunk(run_dir: Path, manifest: Manifest, chunk: ChunkState, numbers: tuple[int, ...]) -> list[Defect]:
    """Check the checksums of both files, then the tag of each row, and its key against the keys file."""
    findings, contents = [], []
    words = manifest.row["tag"] + 1
    for file_of, expected, num_bytes in (
        (rows_file, chunk.rows_checksum, 4 * words), (keys_file, chunk.keys_checksum, 8)
    ):  # fmt: skip
        file = file_of(run_dir / "table.zarr", chunk.number, manifest.num_shards)
        contents.append(content := _first_bytes(file, manifest.chunk_rows * num_bytes + 1))
        if checksum(content) != expected:
            what = f"its checksum is wrong ({file.stat().st_size:,} bytes)" if file.is_file() else "is missing"
            findings.append(Defect(file, what, numbers))
        elif len(content) != manifest.chunk_rows * num_bytes:
            findings.append(Defect(file, f"it has {len(content):,} bytes, which no chunk has", numbers))
    if not findings:
        rows, keys = contents
        rows_RW, keys_R = np.frombuffer(rows, np.uint32).reshape(-1, words), np.frombuffer(keys, np.uint64)
        if not _agree(rows_RW, keys_R):
            file = rows_file(run_dir / "table.zarr", chunk.number, manifest.num_shards)
            what = "its checksum is right, but rows in it have a wrong tag or key"
            findings.append(Defect(file, what, numbers))
    return findings


def _first_bytes(file: Path, num_bytes: int) -> bytes:
    """Read at most `num_bytes` of a file; empty if it is missing. A file that someone enlarged may not fit in
    memory."""
    if not file.is_file():
        return b""
    with open(file, "rb") as opened:
        return opened.read(min(num_bytes, os.fstat(opened.fileno()).st_size))


def _agree(rows_RW: U32, keys_R: U64) -> bool:
    """True if each row has a valid tag, and the same key as the keys file. Padding has all bits set and no tag."""
    padding_R = keys_R == RESERVED
    same = (row_keys(rows_RW) == keys_R).all() and (rows_RW[padding_R] == 2**32 - 1).all()
    return bool(same) and first_wrong_tag(rows_RW[~padding_R]) < 0


def unnamed(run_dir: Path, commits: Commits, manifests: Iterable[Manifest]) -> list[Path]:
    """List files that no commit names, except those that a run writes in addition to its commits."""
    manifests = list(manifests)
    table = run_dir / "table.zarr"
    described = [name for m in manifests for name in m.metadata] or ["zarr.json", "rows/zarr.json", "keys/zarr.json"]
    named = {table / name for name in described}
    named |= {f(table, c.number, m.num_shards) for m in manifests for c in m.chunks for f in (rows_file, keys_file)}
    # The number of replicas of an unreadable manifest is unknown.
    for number in commits.numbers():
        named |= {commits.manifest_file(number), commits.dense_file(number)}
        named |= set(commits.folder.glob(f"{stem(number)}-*.safetensors"))
        # Of an earlier version of this package; the next session deletes it.
        named.add(commits.folder / f"{stem(number)}.sums")
    inside = [p for folder in ("commits", "table.zarr") for p in (run_dir / folder).rglob("*") if p.is_file()]
    others = [p for p in run_dir.iterdir() if p.name not in OURS and not RESERVE_NAME.fullmatch(p.name)]
    return sorted([p for p in inside if p not in named] + others)
