"""Folders that are tables: a log within the folder, not the folder, says which of its files hold rows."""

from __future__ import annotations

import glob
import os
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

Partitions = tuple[tuple[str, str | None], ...]
DELTA = "_delta_log"
READ = frozenset(
    {"deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"}
)
"""Features of Delta tables that change no row; of the first two, those of which a table makes no use."""
COPY = (
    "write it as plain Parquet, and name that folder: in Spark "
    'spark.read.format("{0}").load("{1}").write.parquet(FOLDER)'
)


def table_files(folder: str, begun: Collection[str] = ()) -> list[tuple[str, Partitions]] | None:
    """Place and partition values of each file of a table at its newest version, in the order of names; None if the
    folder is no table. `begun`: places of the files with which a run was begun; the version that has those of them in
    the folder is read instead.

    Raises ValueError if the table is one of Iceberg or Hudi, or has a feature that is not read, or if files of that
    version were removed since.
    """
    if os.path.isdir(os.path.join(folder, DELTA)):
        return _delta_files(folder, {place for place in begun if place.startswith(f"{folder.rstrip('/')}/")})
    if glob.glob(os.path.join(glob.escape(folder), "metadata", "*.metadata.json")):
        raise ValueError(f"{folder} is an Iceberg table, which is not read; {COPY.format('iceberg', folder)}")
    if os.path.isdir(os.path.join(folder, ".hoodie")):
        raise ValueError(f"{folder} is a Hudi table, which is not read; {COPY.format('hudi', folder)}")
    return None


def check_whole(place: str) -> None:
    """Raises ValueError if a file or folder is a part of a Delta table: its log may say that it has no rows."""
    folder = os.path.dirname(place)
    while not os.path.isdir(os.path.join(folder, DELTA)):
        if "=" not in os.path.basename(folder):
            return
        folder = os.path.dirname(folder)
    raise ValueError(f"{place} is in a Delta table, of which some files may be deleted rows; name the folder {folder}")


def _delta_files(folder: str, begun: set[str]) -> list[tuple[str, Partitions]]:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise ValueError(
            f"{folder} is a Delta table ({DELTA}), and deltalake, which reads them, is not installed; install the "
            f"extra delta, or {COPY.format('delta', folder)}"
        ) from None
    try:
        table = DeltaTable(folder)
        newest = table.version()
        files = _live(table, folder)
        while begun and {place for place, _ in files} != begun and table.version() > 0:
            table.load_as_version(table.version() - 1)
            files = _live(table, folder)
    except (DeltaError, OSError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise ValueError(
            said if said.startswith(folder) else f"{folder}: the Delta table cannot be read: {said}"
        ) from error
    if begun and {place for place, _ in files} != begun:
        table.load_as_version(newest)
        files = _live(table, folder)
    if gone := [place for place, _ in files if not os.path.exists(place)]:
        what = "the run was begun with" if begun and table.version() != newest else "the newest is"
        raise ValueError(
            f"{folder}: {what} version {table.version()} of this Delta table, and {len(gone):,} of its files were "
            f"removed since, as by VACUUM, such as {gone[0]}; restore them, or begin another run"
        )
    return files


def _live(table: Any, folder: str) -> list[tuple[str, Partitions]]:
    """Files of the table's version. Raises ValueError, with its name, if the table has a feature that is not read."""
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
            f"{folder} is a Delta table with {', '.join(used)}, which is not read; {way}{purge}, or "
            f"{COPY.format('delta', folder)}"
        )
    names = table.metadata().partition_columns
    found = pa.table(table.get_add_actions(flatten=True))
    values = [found.column(f"partition.{name}").cast(pa.string()).to_pylist() for name in names]
    paths = [
        path if "://" in path else os.path.join(folder, unquote(path)) for path in found.column("path").to_pylist()
    ]
    rows = zip(paths, *values, strict=True)
    return [(path, tuple(zip(names, row, strict=True))) for path, *row in rows]


def _has_vectors(table: Any) -> bool:
    """True if some rows of the table's files are deleted by vectors, which need not be there."""
    from deltalake.exceptions import DeltaError

    try:
        return bool(pa.table(table.deletion_vectors()).num_rows)
    except DeltaError:
        return True
