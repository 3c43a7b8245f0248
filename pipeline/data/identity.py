"""Identity of a run's data: for every file of every split, in order, its size, its row groups, a checksum of its footer
and one of a sample of its columns. No file is read in full."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.data.agenda import Position
from pipeline.data.side_files import SideFiles
from pipeline.errors import FileChanged, shortened
from pipeline.files import stores
from pipeline.files.find import DataFile
from pipeline.files.flat import FlatFile
from pipeline.files.stores import Stamp, is_remote, open_to_read
from pipeline.messages.uris import cut, name_below, uri_of
from pipeline.settings import Count, Digest, Strict, read_json
from pipeline.spans.calendar import Calendar
from pipeline.spans.rows import OutOfPlace
from pipeline.spans.waiting import Held, Unread, Waiting
from pipeline.storage.files import checksum
from pipeline.storage.lists import read_list

SAMPLE_BYTES = 4096
"""Size of the sample at the start of each column chunk: its dictionary, or its first values."""
EMPTY = "null"
"""Type of a column without values, which a file may also lack entirely."""
TAIL_BYTES = 8
"""Bytes after the footer: its length, and Parquet's magic number."""


class FileIdentity(Strict):
    """Identity of one Parquet file."""

    path: str
    """Path relative to `Data.root` if the file is below it, otherwise absolute."""
    size: Count
    """Size of the file in bytes."""
    row_groups: list[tuple[Count, Count]]
    """Pairs (n, rows): n consecutive row groups of `rows` rows each."""
    footer: Digest
    """XXH3 of the footer: schema, offsets and sizes of all columns, statistics."""
    sample: Digest
    """XXH3 of the first `SAMPLE_BYTES` of each used column in the first row group, and of labels and weights in every
    row group. It detects values replaced by others of the same size and range (inverted labels, say), which leave the
    footer unchanged. A replacement beyond the sampled bytes is not detected. For an object in a store: XXH3 of its
    ETag, which detects every replacement."""
    types: dict[str, str]
    """Types of the used columns that differ from those of the split."""
    spans: list[tuple[Count | None, Count]] | None = None
    """Pairs (span, rows), if the training data has spans: the next `rows` rows of the file belong to that span of the
    run, or are left out (None)."""
    moved: list[Count] | None = None
    """Indices of the pairs in `spans` whose rows are of another span, so that they are not scored with it."""
    out_of_place: list[OutOfPlace] | None = None
    """Numbers of rows that are left out, or belong to another span than that of their time."""
    version: Count | None = None
    """Version of the Delta table that lists the file. Not part of the identity: other versions may contain it, too."""
    replaced: bool | None = None
    """True if another file has come in its place (see `begun_part`): at `path`, which ends with a checksum, is none."""

    @property
    def rows(self) -> str:
        """Description of the row groups."""
        return ", ".join(f"{count:,} of {rows:,} rows" for count, rows in self.row_groups) or "none"


class Final(Strict):
    """Files of which all rows were trained on, before the other files of the split."""

    lists: list[Digest]
    """Lists of the files' identities, in order (see `storage.lists`)."""
    num_rows: list[Count]
    num_scored: list[Count]
    """Number of rows of each span in these files, and of those that were scored."""


class SplitIdentity(Strict):
    """Identity of a split: all its files, in the order in which they are read."""

    types: dict[str, str]
    """Type of each used column in the first file with values for it."""
    files: list[FileIdentity]
    spans: list[str] | None = None
    """Names of the spans of the training data, in order (see `pipeline.spans.calendar`)."""
    columns: dict[str, str] | None = None
    """Description of the columns of all splits, with the training split: name of the type of each. Not part of the
    identity, and absent from commits of earlier versions of this package."""
    canonical: bool | None = None
    """See `DataFile`; absent in a run of earlier versions. Not part of the identity."""
    given: list[list[str]] | None = None
    """Places of the files of spans that wait (see `Waiting`), relative to `Data.root` if they are below it. Not part of
    the identity."""
    held: dict[str, Held] | None = None
    """Spans that are set aside, by name. Not part of the identity."""
    unread: dict[str, Unread] | None = None
    """Files that came and are not taken, by name. Not part of the identity."""
    num_closed: Count | None = None
    num_begun: Count | None = None
    """See `Calendar`. Not part of the identity."""
    final: Final | None = None
    """Files that are no longer in `files`; None if all are."""

    def model_post_init(self, context: Any) -> None:
        """Raise ValueError unless every row belongs to a span or is left out, and every span has rows."""
        for file in self.files:
            rows, of_spans = sum(n * rows for n, rows in file.row_groups), sum(rows for _, rows in file.spans or ())
            if (file.spans is None) != (self.spans is None) or (file.spans is not None and rows != of_spans):
                raise ValueError(f"{file.path} has {rows:,} rows, and spans of {of_spans:,} rows")
        numbers = {span for file in self.files for span, rows in file.spans or () if rows} - {None}
        numbers |= {span for span, rows in enumerate(self.final.num_rows if self.final else ()) if rows}
        names = self.spans or []
        if numbers != {*range(len(names))} or len({*names}) < len(names):
            raise ValueError(f"the rows belong to spans {shortened(numbers)}, and the spans are {shortened(names)}")

    @property
    def calendar(self) -> Calendar | None:
        """The spans of the split; None if it has none."""
        if self.spans is None:
            return None
        final = self.final or Final(lists=[], num_rows=[], num_scored=[])
        more = [0] * (len(self.spans) - len(final.num_rows))
        num_rows, num_scored = [*final.num_rows, *more], [*final.num_scored, *more]
        for file in self.files:
            for index, (span, rows) in enumerate(file.spans or ()):
                if span is not None:
                    num_rows[span] += rows
                    num_scored[span] += 0 if index in (file.moved or ()) else rows
        return Calendar(tuple(self.spans), tuple(num_rows), tuple(num_scored), self.num_closed, self.num_begun or 0)

    @property
    def digest(self) -> str:
        """Checksum of the identity: a short name of the data."""
        return digest_of(json.loads(self.model_dump_json(exclude_none=True)))

    @property
    def described(self) -> dict[str, str]:
        """The description of the columns; without one, the types of the used columns."""
        return self.types | (self.columns or {})

    def types_of(self, file: FileIdentity) -> dict[str, str]:
        return self.types | file.types


def digest_of(split: Mapping[str, Any]) -> str:
    """Checksum of a split's identity in the form that `as_json` returns."""
    files = [{name: value for name, value in file.items() if name != "version"} for file in split["files"]]
    without = ("columns", "canonical", "given", "held", "unread", "num_closed", "num_begun")
    others = {name: value for name, value in split.items() if name not in without}
    return checksum(json.dumps({**others, "files": files}).encode())


Identity = Mapping[str, SplitIdentity]
"""Identity of each split, by name."""


@dataclass(frozen=True, slots=True)
class Begun:
    """Data of a resumed run: the files of its last commit, and the files added to them."""

    splits: Identity = field(default_factory=dict)
    extend: tuple[str, ...] = ()
    """Files, folders or patterns, whose files are appended to the training split if it has spans."""
    at: Position | None = None
    """Position of the run, if its training data has spans."""
    keys_of_shards: tuple[int, ...] = ()
    """Number of keys of each shard in the last commit."""
    sides: SideFiles = field(default_factory=SideFiles)
    """The files that features read."""
    begun: int = 0
    """Number of spans with which training has begun."""
    close: bool = False
    """True if this command trains on spans for which `data.close` still awaits rows."""
    waiting: Waiting | None = None
    """Spans that follow `splits` in the training data, if it has any."""
    run_dir: Path | None = None
    """Folder of the run, with the lists of its final files."""

    @property
    def done(self) -> int:
        """Number of spans that training is done with: their files are not opened, by whatever reader."""
        return self.sides.done

    def files(self, split: str) -> list[tuple[str, int | None]]:
        """Names of the split's files, in order, and their versions (see `FileIdentity`)."""
        return [(file.path, file.version) for file in self.splits[split].files] if split in self.splits else []

    def final_files(self) -> Iterator[dict[str, Any]]:
        """Identities, as JSON, of the training files that are in lists. Raises Damaged as `read_list` does."""
        final = self.splits["train"].final if self.run_dir and self.splits else None
        for digest in final.lists if final else ():
            yield from read_list(self.run_dir, digest)  # type: ignore[arg-type]

    def known_among(self, names: Collection[str]) -> dict[str, int]:
        """Sizes of those of the run's training files that have one of these names."""
        files = self.splits["train"].files if self.splits else []
        known = {file.path: file.size for file in files if file.path in names}
        return known | {file["path"]: file["size"] for file in self.final_files() if file["path"] in names}

    @property
    def trains_on(self) -> set[str]:
        """Names of the files of the training data that are not in lists."""
        return {name for name, _ in self.files("train")} | {*(self.waiting.files if self.waiting else ())}

    @property
    def shared(self) -> list[FileIdentity]:
        """Final files of a resumed run with rows of spans with which training has not begun."""
        files = self.splits["train"].files if self.waiting else []
        return [file for file in files if any(span is not None and span >= self.begun for span, _ in file.spans or ())]

    @property
    def canonical(self) -> bool:
        """See `DataFile`."""
        return not self.splits or bool(self.splits["train"].canonical)

    @property
    def is_over(self) -> bool:
        """True if the run has spans and nothing left to train."""
        waits = self.waiting is not None and (self.waiting.rows or self.waiting.held)
        return self.at is not None and not waits and self.at.span == len(self.splits["train"].spans or ())


def stamp_of(file: DataFile | Path) -> Stamp:
    """Stamp of a file; it changes with the content. Raises FileChanged if the file is gone."""
    try:
        return stores.stamp_of(str(file))
    except OSError as error:
        raise FileChanged(
            f"{file} existed when the run began, and is gone ({error}); put it back, and resume"
        ) from error


def look_at(
    path: DataFile | Path, name: str, file: FlatFile, columns: Collection[str], targets: Collection[str]
) -> FileIdentity:
    """Identity of the Parquet file at `path`, with the types of all used columns. `file`: the same file, opened without
    options. `columns`: the used columns. `targets`: the label and weight columns among them."""
    metadata, schema, read = file.metadata, file.schema_arrow, file.inputs(columns)
    sizes = [metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)]
    if stored := file.stored if is_remote(str(path)) else None:
        # The ETag of an object is a stronger check than a sample, and each piece of a sample would cost a request.
        size, footer, sample = stored.stamp.size, stored.footer[:-TAIL_BYTES], stored.stamp.version.encode()
    else:
        with open_to_read(str(path)) as opened:
            size = opened.size()
            footer = opened.read_at(metadata.serialized_size, size - TAIL_BYTES - metadata.serialized_size)
            sample = b"".join(opened.read_at(num, begin) for begin, num in _samples(metadata, read, targets))
    return FileIdentity(
        path=name,
        size=size,
        row_groups=[(len(list(same)), rows) for rows, same in groupby(sizes)],
        footer=checksum(footer),
        sample=checksum(sample),
        types={c: str(schema.field(c).type) if c in schema.names else EMPTY for c in sorted({*columns, *read})},
        version=path.version if isinstance(path, DataFile) else None,
    )


def _samples(
    metadata: pq.FileMetaData, columns: Collection[str], targets: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Offset and size in bytes of each sample."""
    paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
    for g in range(metadata.num_row_groups):
        group, sampled = metadata.row_group(g), targets if g else columns
        for number, path in enumerate(paths):
            if any(path == name or path.startswith(f"{name}.") for name in sampled):
                chunk = group.column(number)
                places = [
                    chunk.data_page_offset,
                    *([chunk.dictionary_page_offset] if chunk.has_dictionary_page else []),
                ]
                yield min(places), min(SAMPLE_BYTES, chunk.total_compressed_size)


def split_identity(
    files: Sequence[FileIdentity], spans: Sequence[str] | None = None, before: SplitIdentity | None = None
) -> SplitIdentity:
    """Identity of a split with these files, each as returned by `look_at`, and with the final files of the split
    `before`. `spans`: see `SplitIdentity`."""
    of_lists = before if before and before.final else None
    types = dict(of_lists.types if of_lists else files[0].types if files else {})
    for name in [name for name, kind in types.items() if EMPTY in kind and not of_lists]:
        types[name] = next((file.types[name] for file in files if EMPTY not in file.types[name]), types[name])
    differing = [{name: kind for name, kind in file.types.items() if types.get(name) != kind} for file in files]
    return SplitIdentity(
        types=types,
        files=[file.model_copy(update={"types": own}) for file, own in zip(files, differing, strict=True)],
        spans=None if spans is None else list(spans),
        final=before.final if before else None,
    )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """First difference, as text, for each split that has changed. Both arguments are in the form of `as_json`."""
    read = [{split: read_json(SplitIdentity, json.dumps(d[split])) for split in now} for d in (before, now)]
    found = {split: difference(read[0][split], read[1][split]) for split in now}
    return {split: text for split, text in found.items() if text}


def difference(before: SplitIdentity, now: SplitIdentity) -> str | None:
    """First difference between two splits, as text; None if they are the same, or if they have spans and `now` only has
    more files at its end."""
    if before.final != now.final:
        return "the lists of the files that were trained on differ"
    longer = before.spans is not None and now.spans is not None
    files = now.files[: len(before.files)] if longer else now.files
    for number, (was, found) in enumerate(zip_longest(before.files, files), start=1):
        if was is None or found is None or was.path != found.path:
            return f"file {number} was {_path(was)}, is {_path(found)}"
        if said := file_difference(was, found, before.types_of(was), now.types_of(found)):
            return said
        if was.spans != found.spans:
            return f"{found.path}: spans, and rows of each, were {was.spans}, are {found.spans}"
    return None


def file_difference(
    was: FileIdentity, found: FileIdentity, types_were: Mapping[str, str], types: Mapping[str, str]
) -> str | None:
    """First difference between two files of the same name, as text; None if they are the same."""
    for name in dict.fromkeys([*types_were, *types]):
        if types_were.get(name) != types.get(name):
            return f"{found.path}: type of column {name!r} was {types_were.get(name)}, is {types.get(name)}"
    if was.row_groups != found.row_groups:
        return f"{found.path}: row groups were {was.rows}, are {found.rows}"
    if was.size != found.size:
        return f"{found.path}: size was {was.size:,} bytes, is {found.size:,}"
    for what in ("footer", "sample"):
        if getattr(was, what) != getattr(found, what):
            where = "its footer" if what == "footer" else "the beginning of its columns"
            return f"{found.path}: other content of the same size (checksum of {where})"
    return None


def _path(file: FileIdentity | None) -> str:
    return file.path if file else "none"


def name_of(file: DataFile, root: Path) -> str:
    """Path of a file as stored in its identity (see `FileIdentity.path`)."""
    if is_remote(file.place):
        return (name_below(file.place, uri_of(root)) if is_remote(root) else None) or cut(file.place)[0]
    path, root = Path(file.place), root.expanduser().absolute()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def files_in(train: Mapping[str, Any], run_dir: Path) -> Iterator[dict[str, Any]]:
    """The files of a training split in the form of `as_json`, with those in lists of the run. Raises Damaged as
    `read_list` does."""
    for digest in train.get("final", {}).get("lists", ()):
        yield from read_list(run_dir, digest)
    yield from train["files"]


def begun_in(data: Mapping[str, Any], run_dir: Path | None = None) -> Begun:
    """All data of a run, from an identity in the form of `as_json`. `run_dir`: folder of the run, to read its lists of
    files as well. Raises ValueError if it has another form."""
    if run_dir and "final" in data["train"]:
        train = {name: value for name, value in data["train"].items() if name != "final"}
        data = {**data, "train": {**train, "files": [*files_in(data["train"], run_dir)]}}
    return Begun(read_json(dict[str, SplitIdentity], json.dumps(data)))


def as_json(identity: Identity) -> dict[str, dict[str, object]]:
    """The identity as JSON-compatible values."""
    return {split: json.loads(of_split.model_dump_json(exclude_none=True)) for split, of_split in identity.items()}
