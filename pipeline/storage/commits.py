"""Commits: a manifest names every file of a state and its checksum. It is published by one rename, after all that it
names is on the disk; what no kept commit names is deleted, and only then.

RUN_DIR/commits/000007.json          the manifest
RUN_DIR/commits/000007.safetensors   the dense model and its optimizer
RUN_DIR/reserve                      space that the next commit can count on
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load

from pipeline.records import Array
from pipeline.storage.files import Damaged, Files, checksum, tensors

FORMAT = 1
DETAILS = "`python -m pipeline.verify RUN_DIR` says more, and --repair goes back to the newest commit that is whole"


class ChunkState(NamedTuple):
    """A chunk of the log that a commit refers to."""

    number: int
    stale: int
    """Rows of it that are padding or have a later version."""
    rows_checksum: str
    keys_checksum: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One commit, but for the bytes of the files that it names."""

    number: int
    name: str | None
    """A named commit is kept until a later one takes its name."""
    tail: int
    live_rows: int
    row: dict[str, Any]
    chunk_rows: int
    chunks: tuple[ChunkState, ...]
    metadata: dict[str, str]
    """Checksums of the log's Zarr metadata as of this commit."""
    dense: str
    """Checksum of the safetensors file."""
    state: dict[str, Any]
    """What the run itself keeps: position, workflow, progress."""

    def content(self) -> bytes:
        """The manifest's file. Every byte of it follows from the values, one of which is a checksum of the others."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        text = json.dumps({"format": FORMAT, **values})
        return f'{{"checksum": "{checksum(text.encode())}", "commit": {text}}}\n'.encode()

    @classmethod
    def of(cls, path: Path) -> Manifest:
        """Damaged if the file is not, to the last bit, what was published."""
        content = path.read_bytes()
        try:
            values = json.loads(content)["commit"]
            if values.pop("format") != FORMAT:
                raise ValueError("it has a format of another version")
            chunks = tuple(ChunkState(*chunk) for chunk in values.pop("chunks"))
            manifest = cls(**values, chunks=chunks)
        except (ValueError, KeyError, TypeError) as error:
            raise Damaged(f"{path}: {error}; {DETAILS}") from error
        if manifest.content() != content or path.stem != stem(manifest.number):
            raise Damaged(f"{path}: its checksum is wrong; {DETAILS}")
        return manifest


def stem(number: int) -> str:
    return f"{number:06}"


class Commits:
    """The commits of a run directory. Belongs to the driver; used while the pipeline is drained."""

    def __init__(self, run_dir: Path, files: Files, keep: int) -> None:
        self.folder = run_dir / "commits"
        self._reserve = run_dir / "reserve"
        self.files = files
        self._keep = keep
        self._read: dict[int, Manifest] = {}
        """Those that were read or published: what is kept does not change."""

    def manifest_file(self, number: int) -> Path:
        return self.folder / f"{stem(number)}.json"

    def dense_file(self, number: int) -> Path:
        return self.folder / f"{stem(number)}.safetensors"

    def numbers(self) -> list[int]:
        """Of all published commits, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("*.json") if path.stem.isdigit())

    def load_dense(self, manifest: Manifest) -> dict[str, Array]:
        file = self.dense_file(manifest.number)
        content = file.read_bytes()
        if checksum(content) != manifest.dense:
            raise Damaged(f"{file}: its checksum is not that of commit {manifest.number}; {DETAILS}")
        arrays: dict[str, Array] = load(content)
        return arrays

    def write_dense(self, number: int, arrays: Mapping[str, Array]) -> str:
        """The dense state of a commit to come; returns its checksum."""
        return self.files.write(self.dense_file(number), tensors(arrays))

    def publish(self, manifest: Manifest) -> None:
        """Make it a commit. What it names is durable, but for the name of the dense state's file."""
        self.files.sync_folder(self.folder)
        self.files.replace(self.manifest_file(manifest.number), [manifest.content()])
        self._read[manifest.number] = manifest

    def kept(self, give_up: bool = False) -> list[Manifest]:
        """The last `keep` commits, or the last one alone, and the last one of each name; ascending."""
        for number in self.numbers():
            if number not in self._read:
                self._read[number] = Manifest.of(self.manifest_file(number))
        manifests = [self._read[number] for number in self.numbers()]
        named = {m.name: m for m in manifests if m.name}
        last = manifests[-1 if give_up else -self._keep :]
        return [m for m in manifests if m in last or m in named.values()]

    def prune(self, kept: Iterable[Manifest]) -> None:
        """Forget all other commits. Their manifests go first: none may be left that names a file which is gone."""
        self._read = {manifest.number: manifest for manifest in kept}
        stems = {stem(number) for number in self._read}
        if stale := [p for p in self.folder.glob("*.json") if p.stem not in stems]:
            for path in stale:
                self.files.remove(path)
            self.files.sync_folder(self.folder)
        for path in self.folder.iterdir():
            if path.name.split(".")[0] not in stems or path.suffix not in (".json", ".safetensors"):
                self.files.remove(path)

    def reserve(self, num_bytes: int) -> None:
        """Hold so much space of the disk for the next commit."""
        self.files.reserve(self._reserve, num_bytes)

    def release(self) -> None:
        if self._reserve.exists():
            self.files.remove(self._reserve)
