"""Folders that are tables: a log in the folder determines which of its files contain rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

Partitions = tuple[tuple[str, str | None], ...]
DELTA = "_delta_log"
READ = frozenset(
    {"deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""Features of Delta tables that do not affect rows; the first two only if a table does not actually use them."""
MARKS = {"a Delta table": DELTA, "an Iceberg table": "metadata/*.metadata.json", "a Hudi table": ".hoodie"}
"""Names within the folder of each kind of table."""


class TableFile(NamedTuple):
    partitions: Partitions
    added: int
    """Time at which it was added, in milliseconds, as the log says. Unlike the version, checkpoints keep it."""


class Table(NamedTuple):
    version: int
    files: dict[str, TableFile]
    """The files, by place, in log order."""
    texts: tuple[str, ...]
    """Names of the columns that the table declares as text."""


def table_files(folder: str, begun: Mapping[str, int | None] = MappingProxyType({})) -> Table | None:
    """The table in a folder at its latest version; None if the folder is not a table. `begun`: files with which a run
    was started, and the table version of each, which is read instead.

    Raises ValueError for an Iceberg or Hudi table, if the table has an unsupported feature, or if files of that version
    have been removed.
    """
    kind = _kind_of(folder)
    if kind == "a Delta table":
        inside = (version for at, version in begun.items() if at.startswith(f"{folder.rstrip('/')}/"))
        return _delta(folder, next((version for version in inside if version is not None), None))
    if kind:
        raise ValueError(f"{folder} is {kind}, which is not supported; {_copy(kind, folder)}")
    return None


def _kind_of(folder: str) -> str:
    """Kind of the table in a folder; "" if it is none."""
    return next((kind for kind, mark in MARKS.items() if glob.glob(os.path.join(glob.escape(folder), mark))), "")


def _copy(kind: str, folder: str) -> str:
    format = kind.split()[1].lower()
    way = f'spark.read.format("{format}").load("{folder}").write.parquet(FOLDER)'
    return f"write it as plain Parquet, and name that folder: in Spark {way}"


def table_of(place: str) -> tuple[str, str] | None:
    """Folder and kind of the table that a file or folder is part of; None if it is part of none."""
    folder = os.path.dirname(place)
    while not (kind := _kind_of(folder)):
        # Iceberg keeps its files in the folder data.
        if "=" not in (name := os.path.basename(folder)) and name != "data":
            return None
        folder = os.path.dirname(folder)
    return folder, kind


def check_whole(place: str) -> None:
    """Raises ValueError if a file or folder is part of a table, whose log may have deleted its rows."""
    if (found := table_of(place)) is None:
        return
    folder, kind = found
    way = f"name the folder {folder}" if kind == "a Delta table" else _copy(kind, folder)
    raise ValueError(f"{place} is in {kind}, and may hold deleted rows; {way}")


def _delta(folder: str, begun: int | None) -> Table:
    """The Delta table, at the version with which a run was started, if any."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise ValueError(
            f"{folder} is a Delta table ({DELTA}), and deltalake, which reads them, is not installed; install the "
            f"extra delta, or {_copy('a Delta table', folder)}"
        ) from None
    try:
        table = DeltaTable(folder, version=begun)
        texts = tuple(one.name for one in table.schema().fields if getattr(one.type, "type", "") == "string")
        found = Table(table.version(), _live(table, folder), texts)
    except (DeltaError, OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        said = said if said.startswith(folder) else f"{folder}: the Delta table cannot be read: {said}"
        raise ValueError(said if begun is None else f"{said} (the run was begun with version {begun})") from error
    what = "the newest is" if begun is None else "the run was begun with"
    if gone := [place for place in found.files if not os.path.exists(place)]:
        raise ValueError(
            f"{folder}: {what} version {found.version} of this Delta table, and {len(gone):,} of its files were "
            f"removed since, as by VACUUM, such as {gone[0]}; restore them, or begin another run"
        )
    return found


def _live(table: Any, folder: str) -> dict[str, TableFile]:
    """Files of the table's version. Raises ValueError if the table has an unsupported feature, which the message
    names."""
    features, settings = {*(table.protocol().reader_features or ())}, table.metadata().configuration
    used = sorted(features - READ)
    if settings.get("delta.columnMapping.mode", "none") != "none":
        used.append("columnMapping")
    if "deletionVectors" in features and _has_vectors(table):
        used.append("deletionVectors")
    if used:
        way = "rewrite it without" if used == ["deletionVectors"] else "copy it to one without"
        purge = " (REORG TABLE ... APPLY (PURGE))" if used == ["deletionVectors"] else ""
        raise ValueError(
            f"{folder} is a Delta table with {', '.join(used)}, which is not supported; {way}{purge}, or "
            f"{_copy('a Delta table', folder)}"
        )
    names = table.metadata().partition_columns
    found = pa.table(table.get_add_actions(flatten=True))
    values = [found.column(f"partition.{name}").cast(pa.string()).to_pylist() for name in names]
    paths = [
        path if "://" in path else os.path.join(folder, unquote(path)) for path in found.column("path").to_pylist()
    ]
    rows = zip(paths, found.column("modification_time").to_pylist(), *values, strict=True)
    return {path: TableFile(tuple(zip(names, row, strict=True)), added) for path, added, *row in rows}


def _has_vectors(table: Any) -> bool:
    """True if deletion vectors, whose files may be missing, delete some rows of the table's files."""
    from deltalake.exceptions import DeltaError

    try:
        return bool(pa.table(table.deletion_vectors()).num_rows)
    except DeltaError:
        return True
