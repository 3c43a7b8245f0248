"""Records of a preparation: the command, so that no other command can resume it, and _prepared.json, which describes
the output."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import shortened
from pipeline.files.find import DataFile
from pipeline.files.stores import open_bytes, stamp_of
from pipeline.machine.aside import move_aside
from pipeline.messages.uris import cut, is_remote
from pipeline.prepare.layout import COMMAND, KEPT, MANIFEST, PART, check_folders
from pipeline.prepare.parts import OutputFile, Record, ValueSpan, joined_span
from pipeline.prepare.schema import Field
from pipeline.prepare.steps import Job, remove_other_parts
from pipeline.settings import SPLITS, Strict, read_json
from pipeline.storage.durable import replacing
from pipeline.storage.files import Files, checksum

HEAD_BYTES = 1 << 16
MAX_SHOWN = 200


class Origin(Strict):
    """State of a source at the start of a preparation."""

    path: str
    bytes: int
    mtime_ns: int
    head: str
    """Checksum of the first `HEAD_BYTES` of the file."""


class Command(Strict):
    """The part of a command that determines the output."""

    options: dict[str, Any]
    sources: list[Origin]


class PreparedSource(Strict):
    """A source in _prepared.json."""

    name: str
    bytes: int
    lines: int
    skipped: int


class PreparedSplit(Strict):
    rows: int
    positives: dict[str, int]
    positive_rate: dict[str, float]
    span: ValueSpan | None = None
    """Least and greatest value of the column of a split by time."""


class Prepared(Strict):
    """Content of _prepared.json: a description of the output."""

    format: str
    options: dict[str, Any]
    sources: list[PreparedSource]
    splits: dict[str, PreparedSplit]
    columns: dict[str, dict[str, Any]]
    files: list[OutputFile]


def command_of(options: Mapping[str, Any], paths: Sequence[DataFile]) -> Command:
    """Command with these options and the current state of these sources."""
    return Command(options=dict(options), sources=[_origin(path) for path in paths])


def _origin(path: DataFile) -> Origin:
    with open_bytes(str(path)) as file:
        head = checksum(file.read(HEAD_BYTES))
    if is_remote(path.place):
        stamp = stamp_of(path.place)
        version = int(checksum(stamp.version.encode()), 16) >> 1
        return Origin(path=cut(path.place)[0], bytes=stamp.size, mtime_ns=version, head=head)
    found = os.stat(path)
    # A file name may be invalid UTF-8, which JSON cannot represent.
    name = str(Path(path).absolute()).encode(errors="backslashreplace").decode()
    return Origin(path=name, bytes=found.st_size, mtime_ns=found.st_mtime_ns, head=head)


def claim(job: Job, out: Path, fresh: bool, command: Command) -> Prepared | None:
    """Claim the output folder for the command. Return its manifest if the output is already finished, else None. With
    `fresh`, existing contents are moved aside first. Sources and `--skip-bad` may change until the output is finished;
    affected parts are removed. Raises ValueError if the folder contains other files or the output of another command,
    or is damaged."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is not a folder; --out names another place")
    if fresh and out.exists() and any(out.iterdir()):
        print(move_aside(out))
    check_folders(out)
    path = out / KEPT / COMMAND
    if path.exists():
        there = _read(path)
        if is_new := not (out / MANIFEST).exists() and _corrects(there, command):
            _go_on_with(job, there, command)
        elif differ := _differences(there, command):
            raise ValueError(
                f"{out} was begun with another command: {'; '.join(differ[:8])}; --fresh moves it aside, --out names "
                "another place"
            )
    elif _holds_anything(out):
        raise ValueError(f"{out} holds other files; --fresh moves it aside, --out names another folder")
    else:
        Files().make_folder(path.parent)
        is_new = True
    if is_new:
        Files().replace(path, [json.dumps(command.model_dump(), indent=1).encode() + b"\n"])
    return read_prepared(out, command) if (out / MANIFEST).exists() else None


def _corrects(there: Command, here: Command) -> bool:
    """True if the commands differ only in the content of sources or in `--skip-bad`, so that parts made by one may be
    valid for the other."""
    same = [source.path for source in there.sources] == [source.path for source in here.sources]
    other = _different(there, here)
    return same and (other == ["skip_bad"] or (not other and there.sources != here.sources))


def _different(there: Command, here: Command) -> list[str]:
    """Names of the options that differ. An absent option counts as None."""
    names = sorted({*there.options, *here.options})
    return [name for name in names if there.options.get(name) != here.options.get(name)]


def _go_on_with(job: Job, there: Command, here: Command) -> None:
    """Remove the parts that the corrected command would make differently."""
    both = zip(there.sources, here.sources, strict=True)
    changed = {number for number, (before, now) in enumerate(both) if before != now}
    # A history may contain events of any source.
    removed = remove_other_parts(job, {*range(len(here.sources))} if changed and job.format.histories else changed)
    what = [*(["--skip-bad"] if _different(there, here) else []), *(here.sources[n].path for n in changed)]
    print(f"resumes with what was corrected ({', '.join(what)}): {removed:,} parts are made again")


def _holds_anything(out: Path) -> bool:
    children = [child for folder in (out, out / KEPT) if folder.is_dir() for child in folder.iterdir()]
    return any(child.name not in (KEPT, f"{COMMAND}.partial") for child in children)


def _read(path: Path) -> Command:
    try:
        # Parsed by json, not by pydantic: an option may be invalid UTF-8, which pydantic rejects.
        return Command.model_validate(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged; --fresh moves {path.parent.parent} aside") from error


def read_prepared(out: Path, command: Command) -> Prepared:
    """Read the manifest of a command's output. Raises ValueError if it is damaged, or a file is missing or has the
    wrong size."""
    path, again = out / MANIFEST, "the same command makes the output again"
    try:
        prepared = read_json(Prepared, path.read_bytes())
        there = Command(options=prepared.options, sources=[])
        if _different(there, command) or prepared.splits.keys() != set(SPLITS) or not prepared.files:
            raise ValueError("it is not of this command")
        for file in prepared.files:
            if file.split not in SPLITS or not re.fullmatch(rf"{file.split}/{PART}\.parquet", file.name):
                raise ValueError(f"it names {shortened(file.name)}, which is not a file of the output")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, and {again}") from error
    for file in prepared.files:
        if not file.has_size(out):
            raise ValueError(
                f"{out / file.name}: does not have {file.bytes:,} bytes, as in {MANIFEST}; remove {path}, and {again}"
            )
    return prepared


def _differences(there: Command, here: Command) -> list[str]:
    differ = [
        f"{name} is {_shown(there.options.get(name))} there and {_shown(here.options.get(name))} here"
        for name in _different(there, here)
    ]
    before, now = ({source.path: source for source in command.sources} for command in (there, here))
    for path in [*before, *(path for path in now if path not in before)]:
        if path not in now:
            differ.append(f"{path} was a source there and is not one here")
        elif path not in before:
            differ.append(f"{path} is a source here and was not one there")
        elif before[path] != now[path]:
            changed = [name for name, value in before[path] if value != getattr(now[path], name)]
            differ.append(f"{path} has changed since ({', '.join(changed)})")
    return differ


def check_sources(command: Command, paths: Iterable[DataFile]) -> None:
    """Raises ValueError if a source has changed since the command started. Missing sources are not checked: they have
    already been read, or reading them will fail."""
    there = {origin.path: origin for origin in command.sources}
    now = [_origin(path) for path in dict.fromkeys(paths) if os.path.exists(path)]
    before = [there[origin.path] for origin in now]
    if differ := _differences(Command(options={}, sources=before), Command(options={}, sources=now)):
        raise ValueError(f"{'; '.join(differ[:8])}: the same command reads what has changed again")


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]} ..."


def summarize(job: Job, command: Command) -> dict[str, Any]:
    """Content of _prepared.json without the list of files."""
    sources: list[dict[str, Any]] = [
        {"name": Path(source.path).name, "bytes": source.bytes, "lines": 0, "skipped": 0} for source in command.sources
    ]
    splits: dict[str, dict[str, Any]] = {
        split: {"rows": 0, "positives": dict.fromkeys(job.of_role("label"), 0)} for split in SPLITS
    }
    limits: dict[str, Any] = {}
    for record in job.records:
        sources[record.file]["lines"] += record.lines
        sources[record.file]["skipped"] += record.skipped
        for name, both in record.numbers.items():
            limits[name] = joined_span([limits.get(name), both])
        for file in record.files:
            splits[file.split]["rows"] += file.rows
            if file.span:
                splits[file.split]["span"] = joined_span([splits[file.split].get("span"), file.span])
            for label, count in file.positives.items():
                splits[file.split]["positives"][label] += count
    for split in splits.values():
        split["positive_rate"] = {name: n / split["rows"] for name, n in split["positives"].items() if split["rows"]}
    return {
        "format": job.format.name,
        "options": command.options,
        "sources": sources,
        "splits": splits,
        "columns": {f.name: _column(f, limits) for f in job.format.fields if f.role != "skip"},
    }


def _column(field: Field, limits: Mapping[str, Any]) -> dict[str, Any]:
    column: dict[str, Any] = {"role": field.role, "type": str(field.type), "list": field.many}
    if field.history:
        column["history"] = field.history
    if field.name in limits:
        column["least"], column["greatest"] = limits[field.name]
    return column


def write_manifest(out: Path, summary: Mapping[str, Any], records: Iterable[Record]) -> None:
    """Write _prepared.json. Files are written one per line, so that they need not all be in memory."""
    head = json.dumps(summary, indent=1).removesuffix("\n}")
    with replacing(out / MANIFEST) as file:
        file.write(f'{head},\n "files": [\n'.encode())
        before = ""
        for record in records:
            for written in record.files:
                file.write(f"{before}  {json.dumps(written.model_dump(exclude_none=True))}".encode())
                before = ",\n"
        file.write(b"\n ]\n}\n")
