"""Commits: a manifest names every file of a state and its checksum. It is published with one rename, after all files
that it names are durable. Only then are files that no kept commit names deleted.

RUN_DIR/commits/000007.json          the manifest
RUN_DIR/commits/000007.safetensors   the dense model and its optimizer
RUN_DIR/commits/000007-3.safetensors the same for the fourth replica, if there are several
RUN_DIR/lists/                       long lists, which manifests name (see `storage.lists`)
RUN_DIR/reserve                      disk space reserved for the next commit; reserve-3 is that of the fourth worker
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from safetensors import SafetensorError
from safetensors.numpy import load

from pipeline.records import Array
from pipeline.settings import STRICT, Count, Digest, read_json
from pipeline.spans.waiting import kept_before, spans_done
from pipeline.storage.durable import Seal
from pipeline.storage.files import Damaged, Files, checksum, refuse_links, tensors
from pipeline.storage.layout import RowLayout
from pipeline.storage.lists import DETAILS, list_file, read_list, remove_lists, write_list
from pipeline.storage.log import TableFormat
from pipeline.storage.shards import MAX_SHARDS, Shards, shard_folder

FORMAT: Literal[3] = 3
WITH_SPANS: Literal[4] = 4
"""Format of the manifests of runs with spans, where a position includes a span. All other manifests have FORMAT."""
WITH_LISTS: Literal[5] = 5
"""The same, with lists in files of their own."""
SEAL = Seal(b'{"checksum": "%s", "commit": ', b"}\n")
BLOCK = 32
"""Maximum number of files, and number of metrics, in a manifest; more of them are written as lists."""
OTHER_VERSION = "go back to the version of this package that wrote it, or start over with --fresh"


NUMBER = r"[0-9]{6,18}"
MANIFEST_NAME = re.compile(rf"{NUMBER}\.json")
OWN_NAME = re.compile(rf"{NUMBER}(\.json|(-[0-9]+)?\.safetensors|\.sums)(\.partial)?")
"""Names of files of this format, and of those that earlier versions of this package added to it (`.sums`), in the
commits folder. Other files are never deleted."""
RESERVE_NAME = re.compile(r"reserve(-[0-9]+)?")


class ChunkState(NamedTuple):
    """A chunk of the log referenced by a commit."""

    number: Count
    stale: Count
    """Number of rows that are padding or have a later version."""
    rows_checksum: Digest
    keys_checksum: Digest


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit: its values, and the checksums of all files that belong to it."""

    __pydantic_config__: ClassVar[Any] = STRICT

    number: Count
    name: str | None
    """A named commit is kept until a later one takes its name."""
    num_shards: Count
    tails: tuple[Count, ...]
    """Number of rows in the arrays of each shard."""
    live_rows: Count
    row: dict[str, Any]
    chunk_rows: Count
    chunks: tuple[ChunkState, ...]
    metadata: dict[str, Digest]
    """Checksums of the Zarr metadata of the table as of this commit."""
    dense: tuple[Digest, ...]
    """Checksums of the safetensors files, one per replica."""
    state: dict[str, Any]
    """The state of the run itself: position, workflow, progress (`pipeline.commits.run_state`)."""
    format: Literal[3, 4, 5] = FORMAT

    def content(self) -> bytes:
        """Content of the manifest file, a function of the values alone."""
        text = json.dumps({field.name: getattr(self, field.name) for field in fields(self)})
        return SEAL.close(text.encode())

    def shortened(self, write: Callable[[list[Any]], str]) -> Manifest:
        """The manifest as it is published: with spans, the long lists of its state are replaced by their names.
        `write`: writes a list, and returns its name."""
        if self.format == FORMAT:
            return self
        epochs, data = self.state["epochs"], self.state["data"]
        starts, files = range(0, (len(epochs) - 1) // BLOCK * BLOCK, BLOCK), data["train"]["files"]
        lists = {
            "epochs": [write(epochs[start : start + BLOCK]) for start in starts],
            "files": [write(files)] if len(files) > BLOCK else [],
        }
        if not any(lists.values()) and not data["train"].get("final"):
            return self
        train = {**data["train"], "files": [] if lists["files"] else files}
        short = {**self.state, "epochs": epochs[len(starts) * BLOCK :], "data": {**data, "train": train}}
        return replace(self, state={**short, "lists": lists}, format=WITH_LISTS)

    def _whole(self, run_dir: Path) -> Manifest:
        """The manifest before it was `shortened`."""
        if self.format != WITH_LISTS:
            return self
        self.final_lists(run_dir)
        state, data, lists = dict(self.state), self.state["data"], self.state["lists"]
        del state["lists"]
        read = {name: [one for digest in lists[name] for one in read_list(run_dir, digest)] for name in lists}
        train = {**data["train"], "files": [*read["files"], *data["train"]["files"]]}
        whole = {**state, "epochs": [*read["epochs"], *state["epochs"]], "data": {**data, "train": train}}
        return replace(self, state=whole)

    def final_lists(self, run_dir: Path) -> list[tuple[Path, str]]:
        """Lists of the training files that are final, and the checksum of each. Raises Damaged for other names."""
        lists = self.state["data"]["train"].get("final", {}).get("lists", ()) if self.format == WITH_LISTS else ()
        return [(list_file(run_dir, digest), digest) for digest in lists]

    @classmethod
    def of(cls, path: Path) -> Manifest:
        """Read a manifest. Raises Damaged if the file was modified or renamed after publication, or has values that no
        run would publish."""
        try:
            manifest = read_json(Manifest, SEAL.open(path.read_bytes()))
            manifest._check()
            manifest = manifest._whole(path.parent.parent)
            if path.stem != stem(manifest.number):
                raise ValueError(f"it is the manifest of commit {manifest.number}")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            other = other_format(path, SEAL, FORMAT, WITH_SPANS, WITH_LISTS)
            raise Damaged(f"{path}: {f'{other}; {OTHER_VERSION}' if other else f'{error}; {DETAILS}'}") from error
        return manifest

    def _check(self) -> None:
        """Raises ValueError if individually valid values are inconsistent. A manifest that passes names no file outside
        the table and no chunk beyond its end."""
        RowLayout.of(self.row)
        if self.name not in (None, "best"):
            raise ValueError(f"name is {self.name[:99]!r}, expected null or 'best'")
        if not (self.number and self.dense and 0 < self.num_shards <= MAX_SHARDS and 0 < self.chunk_rows <= 1 << 40):
            raise ValueError("number, dense, num_shards or chunk_rows is out of range")
        if self.metadata.keys() != metadata_files(self.num_shards):
            raise ValueError(f"metadata does not name exactly the files of a table of {self.num_shards} shards")
        if len(self.tails) != self.num_shards or any(tail % self.chunk_rows for tail in self.tails):
            raise ValueError(f"tails must have a multiple of chunk_rows for each of {self.num_shards} shards")
        before = -1
        for chunk in self.chunks:
            own, shard = divmod(chunk.number, self.num_shards)
            inside = before < chunk.number and (own + 1) * self.chunk_rows <= self.tails[shard]
            if not inside or chunk.stale >= self.chunk_rows:
                raise ValueError(
                    f"chunks: {chunk.number}, with {chunk.stale} stale rows, is out of order, beyond the tail or empty"
                )
            before = chunk.number
        if self.live_rows != sum(self.chunk_rows - chunk.stale for chunk in self.chunks):
            raise ValueError("live_rows is not the sum over all chunks")

    @property
    def table(self) -> TableFormat:
        """Format of the whole table, with all shards."""
        return TableFormat(RowLayout.of(self.row), self.chunk_rows, Shards.all(self.num_shards))

    @property
    def shards(self) -> set[int]:
        """Shards with metadata in this manifest."""
        names = {str(shard_folder(Path(), s, self.num_shards) / "zarr.json"): s for s in range(self.num_shards)}
        return {names[name] for name in names.keys() & self.metadata.keys()}

    @property
    def keys_of_shards(self) -> tuple[int, ...]:
        """Number of keys of each shard."""
        keys = [0] * self.num_shards
        for chunk in self.chunks:
            keys[chunk.number % self.num_shards] += self.chunk_rows - chunk.stale
        return tuple(keys)

    def part(self, owned: Iterable[int]) -> Manifest:
        """Return the part of the commit for the owned shards."""
        mine = set(owned)
        if mine >= set(range(self.num_shards)):
            return self
        chunks = tuple(chunk for chunk in self.chunks if chunk.number % self.num_shards in mine)
        # The metadata of the whole table belongs to the owner of shard 0.
        folders = {str(shard_folder(Path(), s, self.num_shards)) for s in mine} | (
            {"zarr.json"} if 0 in mine else set()
        )
        return replace(
            self,
            tails=tuple(tail if shard in mine else 0 for shard, tail in enumerate(self.tails)),
            live_rows=sum(self.chunk_rows - chunk.stale for chunk in chunks),
            chunks=chunks,
            metadata={name: value for name, value in self.metadata.items() if name.split("/")[0] in folders},
        )


def metadata_files(num_shards: int) -> set[str]:
    """Paths of the Zarr metadata files of a table, relative to the table."""
    shards = {shard_folder(Path(), shard, num_shards) for shard in range(num_shards)}
    arrays = {shard / name for shard in shards for name in ("rows", "keys")}
    return {str(folder / "zarr.json") for folder in {Path(), *shards, *arrays}}


def join_parts(parts: Sequence[Manifest]) -> Manifest:
    """Join the manifests of workers, each for its own shards, into one. Dense states are in the order of the parts;
    name and state are those of the first part.

    Raises ValueError if the parts belong to different commits, or a shard is in no part or in several.
    """
    first = parts[0]
    for what in ("number", "row", "chunk_rows", "num_shards"):
        values = [getattr(part, what) for part in parts]
        if any(value != values[0] for value in values):
            raise ValueError(f"parts of commit {first.number} have different values of {what}: {values}")
    times = Counter(shard for part in parts for shard in part.shards)
    if wrong := [shard for shard in range(first.num_shards) if times[shard] != 1]:
        raise ValueError(
            f"commit {first.number}: each of {first.num_shards} shards must be in one part; these are in none or in "
            f"several: {', '.join(map(str, wrong))}"
        )
    return replace(
        first,
        tails=tuple(map(sum, zip(*(part.tails for part in parts), strict=True))),
        live_rows=sum(part.live_rows for part in parts),
        chunks=tuple(sorted(chunk for part in parts for chunk in part.chunks)),
        metadata={name: part.metadata[name] for part in parts for name in part.metadata},
        dense=tuple(digest for part in parts for digest in part.dense),
    )


def arrays_of(content: bytes, file: Path, way_out: str) -> dict[str, Array]:
    """Arrays in the content of a safetensors file. Raises Damaged if the content is not valid."""
    try:
        arrays: dict[str, Array] = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{file}: it is not a safetensors file: {error}; {way_out}") from error
    return arrays


def other_format(path: Path, seal: Seal, *known: int) -> str | None:
    """Describe the format of a sealed file that cannot be read; None if the format is known or the file is damaged."""
    try:
        found = json.loads(seal.open(path.read_bytes()))["format"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    if found in known:
        return None
    reads = ", ".join(map(str, known))
    return f"it has format {json.dumps(found)[:20]}, and this version of the package reads format {reads}"


def stem(number: int) -> str:
    return f"{number:06}"


class Commits:
    """The commits of a run directory. Used by the driver, while the pipeline is drained."""

    def __init__(self, run_dir: Path, files: Files, keep: int, keep_spans: int = 0) -> None:
        """`keep`, `keep_spans`: numbers of commits that `kept` returns. Raises ValueError if the commits folder is a
        symbolic link."""
        self.folder = run_dir / "commits"
        refuse_links([self.folder])
        self.files = files
        self._keep, self._keep_spans = keep, keep_spans
        self._read: dict[int, Manifest] = {}
        """Cache of manifests read or published, by number. Published manifests never change."""
        self._condemned: dict[int, int] = {}
        """File descriptors of manifests to be deleted, locked so that no reader can take them (`commits.reading`)."""
        weakref.finalize(self, _close_all, self._condemned)

    def manifest_file(self, number: int) -> Path:
        return self.folder / f"{stem(number)}.json"

    def dense_file(self, number: int, replica: int = 0) -> Path:
        return self.folder / f"{stem(number)}{f'-{replica}' if replica else ''}.safetensors"

    def numbers(self) -> list[int]:
        """Return the numbers of all published commits, in ascending order."""
        return sorted(int(path.stem) for path in self.folder.iterdir() if MANIFEST_NAME.fullmatch(path.name))

    def load_dense(self, manifest: Manifest, replica: int = 0) -> dict[str, Array]:
        file = self.dense_file(manifest.number, replica)
        content = file.read_bytes()
        if checksum(content) != manifest.dense[replica]:
            raise Damaged(f"{file}: its checksum is not that of commit {manifest.number}; {DETAILS}")
        return arrays_of(content, file, DETAILS)

    def write_dense(self, number: int, arrays: Mapping[str, Array], replica: int = 0) -> str:
        """Write the dense state of the next commit. Returns its checksum."""
        return self.files.write(self.dense_file(number, replica), tensors(arrays))

    def write_list(self, entries: Sequence[Any]) -> str:
        """Write a list that the next commit names. Returns its checksum."""
        return write_list(self.folder.parent, entries, self.files)

    def publish(self, manifest: Manifest) -> None:
        """Publish the manifest as a commit. All files that it names must be durable, except the directory entries of
        dense states, which are made durable here."""
        self.files.sync_folder(self.folder)
        published = manifest.shortened(self.write_list)
        self.files.replace(self.manifest_file(manifest.number), [published.content()])
        self._read[manifest.number] = manifest

    def all(self) -> list[Manifest]:
        """Return all published commits, in ascending order."""
        for number in self.numbers():
            if number not in self._read:
                self._read[number] = Manifest.of(self.manifest_file(number))
        return [self._read[number] for number in self.numbers()]

    def before_spans(self) -> dict[int, Manifest]:
        """Return the last commit before each span of the run, by the span's number, in ascending order."""
        done = [(*spans_done(m.state), m) for m in self.all() if m.format != FORMAT]
        return {span: m for span, is_whole, m in done if is_whole}

    def kept_spans(self) -> list[Manifest]:
        """Return the commits that are kept for going back to the beginning of a span, in ascending order."""
        before = self.before_spans() if self._keep_spans else {}
        chosen = kept_before(before, self._keep_spans)
        return [m for span, m in before.items() if span in chosen]

    def kept(self, give_up: bool = False) -> list[Manifest]:
        """Return the commits to keep, in ascending order: the last `keep` commits, the last one of each name, those
        before spans, and those held by a reader. `give_up`: only the last commit, the last one of each name, and those
        before spans without the oldest."""
        manifests = self.all()
        named = [*{m.name: m for m in manifests if m.name}.values(), *self.kept_spans()[int(give_up) :]]
        last = manifests[-1 if give_up else -self._keep :]
        return [m for m in manifests if m in last or m in named or (self._is_held(m) and not give_up)]

    def _is_held(self, manifest: Manifest) -> bool:
        """True if a reader holds the lock of the manifest. Otherwise, this object takes the lock and keeps it until
        `prune`, so that no reader can take a commit that is about to be deleted."""
        if manifest.number in self._condemned:
            return False
        # Opened for writing, since NFS requires that for exclusive locks.
        descriptor = os.open(self.manifest_file(manifest.number), os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return True
        except OSError:
            # On a file system without locks, no reader can hold one.
            os.close(descriptor)
            return False
        self._condemned[manifest.number] = descriptor
        return False

    def undo(self, after: Manifest) -> list[int]:
        """Delete the manifests of all commits behind `after`, the newest first, each durably, so that the last commit
        there is can be opened at any time. Returns their numbers. Raises ValueError if a reader holds one of them."""
        behind = [m for m in reversed(self.all()) if m.number > after.number]
        try:
            if held := [str(m.number) for m in behind if self._is_held(m)]:
                raise ValueError(
                    f"a reader (score, export or an open run) holds commit {', '.join(held)}; end it first"
                )
            for manifest in behind:
                self.files.remove(self.manifest_file(manifest.number))
                self.files.sync_folder(self.folder)
        finally:
            _close_all(self._condemned)
        return [m.number for m in behind]

    def prune(self, kept: Iterable[Manifest]) -> None:
        """Delete all commits not in `kept`. Manifests are deleted first, so that none ever names a missing file."""
        self._read = {manifest.number: manifest for manifest in kept}
        named = {self.manifest_file(number) for number in self._read}
        ours = [path for path in self.folder.iterdir() if OWN_NAME.fullmatch(path.name) and not path.is_dir()]
        if stale := [path for path in ours if path.suffix == ".json" and path not in named]:
            for path in stale:
                self.files.remove(path)
            self.files.sync_folder(self.folder)
        _close_all(self._condemned)
        for manifest in self._read.values():
            named |= {self.dense_file(manifest.number, replica) for replica in range(len(manifest.dense))}
        for path in ours:
            if path not in named and path.suffix != ".json":
                self.files.remove(path)
        remove_lists(self.folder.parent, map(self.manifest_file, self._read), self.files)


def _close_all(descriptors: dict[int, int]) -> None:
    while descriptors:
        os.close(descriptors.popitem()[1])
