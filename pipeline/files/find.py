"""The files of a data source: a file, a folder (recursively) or a pattern. All commands see the same files in the same
order.

Below the named path, names that start with `_` or `.` are ignored: success markers, checksums, temporary files. Numbers
within names are ordered by value, so that part-2 comes before part-10. Folders "name=value" are columns, as written by
Hive and Spark.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

from pipeline.files import stores
from pipeline.files.description import kind_named
from pipeline.files.tables import check_whole, table_files
from pipeline.messages.uris import cut, is_remote, join, name_below, parse, refuse_keys, uri_of

FORMS = {
    ".parquet": "Parquet", ".pq": "Parquet", ".csv": "text", ".tsv": "text", ".txt": "text", ".json": "JSON",
    ".ndjson": "JSON", ".jsonl": "JSON",
}  # fmt: skip
PACKED = (".gz", ".zst", ".bz2")
"""Suffixes of compressed files, following the suffix of the format."""
MARK = b"PAR1"
"""First bytes of a Parquet file."""
NULL = "__HIVE_DEFAULT_PARTITION__"
WHOLE = re.compile("0|-?[1-9][0-9]*")
"""Partition values that are integers, if they fit in 64 bits; any other form would lose zeros or a sign."""
DIGITS = 255
"""Number of digits to which numbers in a sort key are padded: no file name is longer."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file."""

    place: str
    """Absolute local path, or URI (see `stores`)."""
    partitions: tuple[tuple[str, str | None], ...] = ()
    """Columns named by the folders of its path ("day=2026-11-24/site=3"), decoded; None for a null. Every row of the
    file has these values."""
    whole: tuple[str, ...] = ()
    """Names of the partition columns that are integers; the others are text."""
    texts: tuple[str, ...] = field(default=(), compare=False)
    """Names of the columns that the Delta table declares as text."""
    version: int | None = field(default=None, compare=False)
    """Version of the Delta table that lists the file."""
    added: tuple[str, int] = field(default=("", 0), compare=False)
    """Folder of this Delta table, and the time at which the file was added to it; ("", 0) for other files."""
    below: str = field(default="", compare=False)
    """Path below the named folder or below the fixed part of the pattern; for a named file, its name."""
    derived: Any = field(default=None, compare=False, repr=False)
    """Columns that a workflow's features derive from the file's own (see `pipeline.features.derived.Derived`)."""
    canonical: bool = field(default=True, compare=False, repr=False)
    """False for runs of earlier versions, which read UUIDs as they were written, and INT96 in nanoseconds."""

    def __str__(self) -> str:
        return self.place

    def __fspath__(self) -> str:
        return self.place

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def stem(self) -> str:
        return self._path.stem

    @property
    def suffix(self) -> str:
        return self._path.suffix

    @property
    def _path(self) -> PurePosixPath:
        return PurePosixPath(cut(self.place)[0])


@dataclass(frozen=True, slots=True)
class Listing:
    files: tuple[DataFile, ...]
    left_out: tuple[DataFile, ...]
    """Files of other formats in data folders, such as a README."""


def find(
    sources: Iterable[str], root: Path | None = None, setting: str = "", form: str = "",
    types: Mapping[str, str] | None = None, begun: Mapping[str, int | None] = MappingProxyType({}),
) -> Listing:  # fmt: skip
    """Files of the sources, source by source, each sorted by name. `setting`: setting that names the sources, used in
    messages. `form`: accepted format, as returned by `form_of`; "": any. `types`: see `typed`. `begun`: see
    `table_files`.

    Raises ValueError if a source has no file, or a folder has files of several formats.
    """
    files: list[DataFile] = []
    left_out: list[DataFile] = []
    for source in sources:
        found = _find_one(source, root, setting, form, begun)
        files += found.files
        left_out += found.left_out
    return Listing(tuple(typed(files, types or {})), tuple(left_out))


def named(path: Path | str, root: Path | None = None, below: str = "") -> DataFile:
    """The file at this path or URI. Folders above `root` (default: the current folder) are not columns."""
    if is_remote(path):
        inside = (name_below(str(path), uri_of(root)) if root else None) or parse(path).key
        return DataFile(str(path), partitions_of(inside), below=below or inside.rpartition("/")[2])
    place, base = Path(path).absolute(), (root or Path()).expanduser().absolute()
    relative = place.relative_to(base) if place.is_relative_to(base) else place
    return DataFile(str(place), partitions_of(str(relative)), below=below or place.name)


def partitions_of(path: str) -> tuple[tuple[str, str | None], ...]:
    """Columns named by the folders of a path, and their values."""
    pairs = [part.partition("=") for part in path.split("/")[:-1]]
    found = {unquote(name): unquote(value) for name, equals, value in pairs if name and equals}
    return tuple((name, None if value == NULL else value) for name, value in found.items())


def typed(files: Sequence[DataFile], types: Mapping[str, str]) -> list[DataFile]:
    """The files of a source with `whole` set: columns whose values are all integers and that no table declares as text.
    `types`: those of the description (see `Description`), which take precedence; a value that is no integer is text
    nevertheless, and `SchemaCheck` refuses its file."""
    values = {(name, value) for file in files for name, value in file.partitions if value is not None}
    text = {name for file in files for name in file.texts} | {n for n, v in values if not _is_whole(v)}
    whole = {name for name, _ in values} - text - {*types} | {
        n for n, v in types.items() if kind_named(v) == "integers"
    }
    wholes = [tuple(n for n, v in file.partitions if n in whole and (v is None or _is_whole(v))) for file in files]
    return [replace(file, whole=names) for file, names in zip(files, wholes, strict=True)]


def _is_whole(text: str) -> bool:
    return bool(WHOLE.fullmatch(text)) and -(1 << 63) <= int(text) < 1 << 63


def natural_order(place: object) -> tuple[list[str], str]:
    """Sort key that puts part-2 before part-10, and otherwise sorts as text."""
    text = str(place)
    return [re.sub("[0-9]+", lambda found: found[0].zfill(DIGITS), part) for part in text.split("/")], text


def as_added(files: Iterable[DataFile]) -> list[DataFile]:
    """The files, those of each Delta table in the order in which they were added; those added at once stay in order."""
    of_tables = groupby(files, key=lambda file: file.added[0])
    return [file for _, of_table in of_tables for file in sorted(of_table, key=lambda file: file.added[1])]


def is_hidden(path: str) -> bool:
    """True if any part of a relative path starts with `_` or `.`."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


def check_once(files: Mapping[str, Iterable[DataFile]]) -> None:
    """Raises ValueError if two of the files are the same file, through links or otherwise. `files`: files of each
    setting, or of ""."""
    seen: dict[object, tuple[DataFile, str]] = {}
    for file, setting in ((file, name) for name, of_name in files.items() for file in of_name):
        identity: object = file.place
        with suppress(OSError):
            if not is_remote(file.place):
                found = os.stat(file.place)
                identity = found.st_dev, found.st_ino
        if identity in seen:
            first, other = seen[identity]
            names = [f"{place} ({of})" if of else str(place) for place, of in ((first, other), (file, setting))]
            raise ValueError(f"{names[0]} and {names[1]} are one file; name it once, since its rows would count twice")
        seen[identity] = file, setting


def matches_name(file: DataFile | Path, pattern: str) -> bool:
    """True if a shell pattern matches the file's name or, if the pattern contains a slash, the last components of its
    path."""
    of_path = (pattern, f"*/{pattern}") if "/" in pattern else ()
    return fnmatchcase(file.name, pattern) or any(fnmatchcase(str(file), one) for one in of_path)


def matches(source: str, root: Path | None = None) -> list[str]:
    """Local files and folders that match a source, sorted by name."""
    place = place_of(source, root)
    if os.path.lexists(place):
        return [place]
    fixed = PurePosixPath(_fixed(place))
    pattern = PurePosixPath(place).parts[len(fixed.parts) :]
    found = glob.glob(str(PurePosixPath(glob.escape(str(fixed)), *pattern)), recursive=True)
    shown = {one.rstrip("/") for one in found if not _hides(PurePosixPath(one).relative_to(fixed).parts, pattern)}
    # A pattern with ** matches both a folder and its contents.
    inside = {one for one in shown if any(str(parent) in shown for parent in PurePosixPath(one).parents)}
    return sorted(sorted(shown - inside), key=lambda one: "/".join(natural_order(one)[0]))


def place_of(source: str, root: Path | None = None) -> str:
    """Absolute path, or URI, of a source. A path may be written as file:///path."""
    source = unquote(re.sub("file:/+", "/", source, count=1)) if source.startswith("file:/") else source
    if is_remote(source):
        return uri_of(source)
    if root and is_remote(root) and not source.startswith(("/", "~")):
        return join(uri_of(root), source) if source != "." else uri_of(root)
    return str(((root or Path()).expanduser() / Path(source).expanduser()).absolute())


def _fixed(place: str) -> str:
    """The folder of a pattern before its first part with a wildcard. The name of an existing folder is taken
    literally."""
    parts = place.split("/")
    at = 0
    while at < len(parts) and (not glob.has_magic(parts[at]) or os.path.isdir("/".join(parts[: at + 1]))):
        at += 1
    return "/".join(parts[:at]) or "/"


def _hides(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if a name is ignored: it starts with `_` or `.`, and no matching part of the pattern starts the same way."""
    return any(
        is_hidden(name) and not any(part[0] == name[0] and fnmatchcase(name, part) for part in pattern)
        for name in names
    )


def _find_one(source: str, root: Path | None, setting: str, form: str, begun: Mapping[str, int | None]) -> Listing:
    refuse_keys(setting or "a source", source)
    refuse_keys("data.root", root or "")
    place = place_of(source, root)
    in_tables: dict[str, dict[str, Any]] = {}
    if is_remote(place):
        base, below = _matches_in_store(place)
    else:
        there = matches(source, root)
        for one in there:
            check_whole(one)
        base = place if there == [place] else _fixed(place)
        below = {
            one: sorted(_once(_below(one, begun, in_tables)), key=natural_order) if os.path.isdir(one) else [one]
            for one in there
        }
    if below == {place: [place]}:
        return Listing((named(place, root),), ())
    relative = name_below if is_remote(place) else os.path.relpath
    files = [named(path, root, relative(path, base) or "") for paths in below.values() for path in paths]
    files = [replace(file, **in_tables.get(file.place, {})) for file in files]
    what, said = f"{form} file" if form else "file of data", f"{setting}: {source!r}" if setting else source
    chosen, left_out = _of_one_form(files, said, form)
    way = f"correct the pattern, or data.root, which is {str(root)!r}" if root else "name files, folders or patterns"
    if not chosen:
        has = f", but has {some(files)}" if files else ""
        if form == "Parquet" and any(form_of(file) for file in files):
            way = "convert text to Parquet first, with `pipeline prepare`"
        raise ValueError(f"{said} matches no {what} (looked for {place}){has}; {way}")
    places = {file.place for file in chosen}
    for folder, paths in below.items():
        if paths != [folder] and places.isdisjoint(paths):
            raise ValueError(
                f"{said} also matches {folder}, a folder without {what}s; correct the pattern, or move the folder away"
            )
    return Listing(tuple(chosen), tuple(left_out))


def _matches_in_store(place: str) -> tuple[str, dict[str, list[str]]]:
    """The folder before the first wildcard, and the matching files and folders, each with its files."""
    bare, options = cut(place)
    parts = bare.split("/")
    at = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    base, pattern = "/".join(parts[:at]) + options, parts[at:]
    found: dict[str, list[str]] = {}
    for file in stores.files_below(base):
        names = (name_below(file, base) or "").split("/")
        for n in range(len(names) + 1) if not pattern else range(1, len(names) + 1):
            if _fits(names[:n], pattern) and not _hides(names[:n], pattern):
                if not is_hidden("/".join(names[n:]) or "x"):
                    found.setdefault(join(base, "/".join(names[:n])) if n else place, []).append(file)
                break
    if not pattern and not found and stores.is_file(place):
        found[place] = [place]
    return base, {one: sorted(found[one], key=natural_order) for one in sorted(found, key=natural_order)}


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if each part of a pattern matches one name, and ** any number of names."""
    if not pattern or not names:
        return not names and all(part == "**" for part in pattern)
    if pattern[0] == "**":
        return _fits(names, pattern[1:]) or _fits(names[1:], pattern)
    return fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])


def _below(folder: str, begun: Mapping[str, int | None], in_tables: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Files below a folder; `in_tables` receives the DataFile fields that table logs give for their files."""

    def refuse(error: OSError) -> None:
        raise error

    for path, folders, names in os.walk(folder, onerror=refuse):
        of_table = table_files(path, begun)
        if of_table is not None:
            for place, (partitions, added) in of_table.files.items():
                found = {"partitions": partitions, "texts": of_table.texts, "version": of_table.version}
                in_tables[place] = found | {"added": (path, added)}
            folders[:], names = [], []
            yield from of_table.files
        folders[:] = [name for name in folders if not is_hidden(name)]
        yield from (f"{path.rstrip('/')}/{name}" for name in names if not is_hidden(name))


def _once(below: Iterable[str]) -> list[str]:
    """Files below a folder without links to others of them, such as one to the latest."""
    paths = list(below)
    if not (links := {path for path in paths if os.path.islink(path)}):
        return paths
    files = {os.path.realpath(path) for path in paths if path not in links}
    return [path for path in paths if path not in links or os.path.realpath(path) not in files]


def form_of(file: DataFile) -> str:
    """Format of a file by its name: "Parquet", "text", "JSON", or "" if the name does not tell."""
    path = PurePosixPath(cut(file.place)[0].lower())
    if path.suffix not in PACKED:
        return FORMS.get(path.suffix, "")
    form = FORMS.get(path.with_suffix("").suffix, "")
    return "" if form == "Parquet" else form


def _of_one_form(files: Sequence[DataFile], source: str, wanted: str) -> tuple[list[DataFile], list[DataFile]]:
    """The data files among those of a folder, and the others. Files without a known suffix are data if no file has one,
    as for parts written by Spark and Hive."""
    of_form: dict[str, list[DataFile]] = {}
    for file in files:
        of_form.setdefault(form_of(file), []).append(file)
    known = sorted(form for form in of_form if form)
    form = wanted or ("Parquet" if "Parquet" in known else next(iter(known), ""))
    if not wanted and known == ["JSON", "text"]:
        raise ValueError(
            f"{source} has files of text and of JSON, such as {of_form['text'][0]} and {of_form['JSON'][0]}; name "
            "those of one form by a pattern, or move the others away"
        )
    chosen = of_form.get(form if known else "", [])
    if wanted == "Parquet" and not known:
        chosen = [file for file in chosen if begins_with_mark(file)]
    places = {file.place for file in chosen}
    return chosen, [file for file in files if file.place not in places]


def begins_with_mark(file: DataFile) -> bool:
    """True for a Parquet file, whatever its name."""
    with stores.open_to_read(str(file)) as opened:
        return bool(opened.read(len(MARK)) == MARK)


def some(files: Sequence[DataFile]) -> str:
    return ", ".join(file.below for file in files[:3]) + (", ..." if len(files) > 3 else "")
