"""What is written down: the command, so that nobody goes on with another one, and beside the output what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.data.files import SPLITS
from pipeline.prepare.durable import replacing
from pipeline.prepare.formats import Field
from pipeline.prepare.parts import Record
from pipeline.prepare.pieces import Piece
from pipeline.prepare.steps import KEPT, Job
from pipeline.prepare.vocabulary import Vocabulary, path_of
from pipeline.storage.files import Files, checksum

COMMAND, MANIFEST = "command.json", "prepared.json"
HEAD_BYTES = 1 << 16
MOST_SHOWN = 200


def command_of(options: Mapping[str, Any], paths: Sequence[Path]) -> dict[str, Any]:
    """What fixes the output: options, and sources as they are at this time."""
    return {"options": dict(options), "sources": [_source(path) for path in paths]}


def _source(path: Path) -> dict[str, Any]:
    found = path.stat()
    with open(path, "rb") as file:
        head = checksum(file.read(HEAD_BYTES))
    return {"path": str(path.absolute()), "bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "head": head}


def claim(out: Path, fresh: bool, command: dict[str, Any]) -> bool:
    """Make the output the command's own; whether it is finished already. What was there is moved aside if so asked, and
    never deleted. ValueError: it holds something else, or the output of another command."""
    if fresh and out.exists() and any(out.iterdir()):
        beside = (out.with_name(f"{out.name}.{n}") for n in range(1, 1 << 20))
        out.rename(next(path for path in beside if not path.exists()))
    path = out / KEPT / COMMAND
    if path.exists():
        check_same(out, json.loads(path.read_text()), command)
    elif out.exists() and any(child.name != KEPT for child in out.iterdir()):
        raise ValueError(f"{out} holds something else; --fresh moves it aside, --out names another place")
    else:
        Files().make_folder(path.parent)
        Files().replace(path, [json.dumps(command, indent=1).encode() + b"\n"])
    return (out / MANIFEST).exists()


def check_same(out: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    """ValueError says what differs."""
    differ = [
        f"{name} is {_shown(there['options'].get(name))} there and {_shown(here['options'].get(name))} here"
        for name in sorted({*there["options"], *here["options"]})
        if there["options"].get(name) != here["options"].get(name)
    ]
    before, now = ({source["path"]: source for source in command["sources"]} for command in (there, here))
    for path in [*before, *(path for path in now if path not in before)]:
        if path not in now:
            differ.append(f"{path} was a source there and is none here")
        elif path not in before:
            differ.append(f"{path} is a source here and was none there")
        elif before[path] != now[path]:
            changed = [name for name in before[path] if before[path][name] != now[path][name]]
            differ.append(f"{path} has changed since ({', '.join(changed)})")
    if differ:
        raise ValueError(
            f"{out} was begun with another command: {'; '.join(differ[:8])}; --fresh moves it aside, --out names "
            "another place"
        )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ..."


def summarize(
    job: Job, pieces: Sequence[Piece], command: dict[str, Any], keys: Mapping[str, tuple[int, bool]]
) -> dict[str, Any]:
    """All of prepared.json but for its list of files. `keys`: different ones of each category, and whether exactly."""
    sources: list[dict[str, Any]] = [
        {"name": Path(source["path"]).name, "bytes": source["bytes"], "lines": 0, "skipped": 0}
        for source in command["sources"]
    ]
    splits: dict[str, dict[str, Any]] = {
        split: {"rows": 0, "positives": dict.fromkeys(job.of_role("label"), 0)} for split in SPLITS
    }
    limits: dict[str, tuple[float, float]] = {}
    for record in job.records("write"):
        sources[record.file]["lines"] += record.lines
        sources[record.file]["skipped"] += record.skipped
        for name, (least, most) in record.numbers.items():
            before = limits.get(name, (least, most))
            limits[name] = (min(least, before[0]), max(most, before[1]))
        for file in record.files:
            splits[file.split]["rows"] += file.rows
            for label, count in file.positives.items():
                splits[file.split]["positives"][label] += count
    for split in splits.values():
        split["positive_rate"] = {name: n / split["rows"] for name, n in split["positives"].items() if split["rows"]}
    return {
        "format": job.format.name,
        "options": command["options"],
        "sources": sources,
        "splits": splits,
        "columns": dict(_columns(job, limits, keys)),
    }


def _columns(
    job: Job, limits: Mapping[str, tuple[float, float]], keys: Mapping[str, tuple[int, bool]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for field in sorted(job.format.fields, key=lambda field: field.name):
        if field.role != "skip":
            yield field.name, _column(job, field, limits, keys)


def _column(
    job: Job, field: Field, limits: Mapping[str, tuple[float, float]], keys: Mapping[str, tuple[int, bool]]
) -> dict[str, Any]:
    is_id = field.name in job.vocabulary
    column: dict[str, Any] = {"role": field.role, "type": "int32" if is_id else str(field.type), "list": field.many}
    if field.name in keys:
        column["unique_keys"], column["exact"] = keys[field.name]
    if field.name in limits:
        column["least"], column["greatest"] = limits[field.name]
    if is_id:
        column["vocabulary"] = len(Vocabulary(path_of(job.out, field.name), field.name))
    return column


def write_manifest(out: Path, summary: Mapping[str, Any], records: Iterable[Record]) -> None:
    """The files are written as they come, one a line: memory does not hold them all."""
    head = json.dumps(summary, indent=1).removesuffix("\n}")
    with replacing(out / MANIFEST) as file:
        file.write(f'{head},\n "files": [\n'.encode())
        before = ""
        for record in records:
            for written in record.files:
                file.write(f"{before}  {json.dumps(asdict(written))}".encode())
                before = ",\n"
        file.write(b"\n ]\n}\n")
