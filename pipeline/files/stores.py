"""Access to files, on a local disk or in an object store, through pyarrow's file systems.

Credentials come from the standard chain of each store's library (environment, configuration files, the machine's role),
never from an address. Transient failures are retried, and every wait is bounded.
"""

from __future__ import annotations

import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TypeVar
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pipeline.messages.uris import is_remote, join, parse

T = TypeVar("T")
CONNECT_SECONDS, REQUEST_SECONDS = 10, 30
"""Seconds without a connection, or without a byte of the response, after which a request fails."""
TRIES = 3
"""Attempts per request by the S3 library, within seconds."""
PAUSES = (1.0, 4.0, 10.0)
"""Seconds before each of our own retries."""
PIECE = 8 << 20
"""Number of bytes per request of a file that is read in order."""
TAIL = 1 << 16
"""Bytes read first, from the end of a Parquet file; most footers are shorter."""
IN_VAIN = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|EXPIRED|NO_SUCH|NOT_FOUND|does not exist|HTTP status 4(?!08|29)"
)
"""Patterns in a store's errors that make a retry pointless."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Properties of a file that change if it is replaced or rewritten."""

    size: int
    """Size in bytes."""
    version: str
    """Device, inode and modification time of a local file; ETag of an object, or its modification time in a store
    without ETags."""


def file_system(place: str) -> tuple[pafs.FileSystem, str]:
    """File system of a place, and the path in it. Raises ValueError if a URI contains keys or has no bucket."""
    if not is_remote(place):
        return pafs.LocalFileSystem(), place
    uri = parse(place)
    if uri.scheme == "s3":
        return _s3(**_of_s3(uri.options)), f"{uri.bucket}/{uri.key}"
    if uri.scheme == "gs":
        return _gs(**uri.options), f"{uri.bucket}/{uri.key}"
    key = os.environ.get("AZURE_STORAGE_KEY") if uri.scheme.startswith("abfs") else None
    found = _azure(uri.bucket, key, **uri.options) if key else _other(uri.scheme, uri.bucket, urlencode(uri.options))
    return found[0], found[1] + uri.key


def _of_s3(options: dict[str, str]) -> dict[str, str]:
    """Options of a URI; environment variables fill in missing ones."""
    names = {
        "endpoint_override": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
        "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
        "anonymous": ("AWS_NO_SIGN_REQUEST",),
    }
    given = {
        option: os.environ[name] for option, found in names.items() for name in found[::-1] if os.environ.get(name)
    }
    return given | options


@lru_cache
def _s3(anonymous: str = "", **options: str) -> pafs.FileSystem:
    if options.get("endpoint_override"):
        if options["endpoint_override"].startswith("http://"):
            options.setdefault("scheme", "http")
        options["endpoint_override"] = re.sub("^https?://", "", options["endpoint_override"]).rstrip("/")
    return pafs.S3FileSystem(
        anonymous=is_true(anonymous), connect_timeout=CONNECT_SECONDS, request_timeout=REQUEST_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES), **options,
    )  # fmt: skip


@lru_cache
def _gs(anonymous: str = "", **options: str) -> pafs.FileSystem:
    return pafs.GcsFileSystem(
        anonymous=is_true(anonymous), retry_time_limit=timedelta(seconds=REQUEST_SECONDS), **options
    )


@lru_cache
def _azure(authority: str, key: str, enable_tls: str = "true", **options: str) -> tuple[pafs.FileSystem, str]:
    """File system of the key's account, and the path of the container named by the authority."""
    user, _, host = authority.rpartition("@")
    container, account = f"{user}/", host.partition(".")[0]
    if not host.endswith(".core.windows.net"):
        # An emulator: account@host:port, with the container in the path.
        container, account = "", user
        options = {"blob_storage_authority": host, "dfs_storage_authority": host} | options
    scheme = "https" if is_true(enable_tls) else "http"
    options |= {"account_name": account, "blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
    options.pop("credential_kind", None)
    return pafs.AzureFileSystem(account_key=key, **options), container


@lru_cache
def _other(scheme: str, authority: str, query: str) -> tuple[pafs.FileSystem, str]:
    """File system, and the path of its root."""
    try:
        system, path = pafs.FileSystem.from_uri(f"{scheme}://{authority}/x{'?' if query else ''}{query}")
    except (pa.ArrowException, OSError) as error:
        needs = " (it needs Java and Hadoop's libhdfs: JAVA_HOME, HADOOP_HOME)" if scheme == "hdfs" else ""
        raise ValueError(f"{scheme}://{authority}: cannot be used{needs}: {_one_line(error)[:120]}") from error
    return system, path.removesuffix("x")


def is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "yes")


def retried(what: str, place: str, call: Callable[[], T]) -> T:
    """Result of a call that reads at a place. In an object store, transient errors are reported on stderr and
    retried. `what`: the call in a message, such as "read row group 3". Raises OSError."""
    for number, pause in enumerate((*PAUSES, None) if is_remote(place) else (None,), start=1):
        try:
            return call()
        except FileNotFoundError:
            raise
        except OSError as error:
            if not is_remote(place):
                raise
            if pause is None or IN_VAIN.search(str(error)):
                way = f"tried {number} times; check the network and the store, and repeat the command"
                if IN_VAIN.search(str(error)):
                    way = "correct the address, or the credentials and the region in the environment"
                raise OSError(f"{place}: could not {what} ({_one_line(error)}); {way}") from error
            print(
                f"{place}: could not {what}, try {number} of {len(PAUSES) + 1} ({_one_line(error)}); "
                f"trying again in {pause:.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def files_below(place: str) -> Iterator[str]:
    """Place of every file below a folder (recursively), in any order; none if the folder does not exist."""
    system, path = file_system(place)
    top = path.rstrip("/")
    selector = pafs.FileSelector(top, recursive=True, allow_not_found=True)
    for found in retried("list the folder", place, lambda: system.get_file_info(selector)):
        if found.type == pafs.FileType.File:
            name = found.path[len(top) + 1 :]
            yield join(place, name) if is_remote(place) else os.path.join(place, name)


def open_to_read(place: str) -> pa.NativeFile:
    """Open a file for random access. Raises OSError if it cannot be found."""
    system, path = file_system(place)
    return retried("open it", place, lambda: system.open_input_file(path))


def stamp_of(place: str, opened: pa.NativeFile | None = None) -> Stamp:
    """Stamp of a file. `opened`: the same file, already open; in a store, the stamp is that of the time of opening.
    Raises OSError if the file cannot be found."""
    if not is_remote(place):
        found = os.stat(place)
        return Stamp(found.st_size, f"{found.st_dev} {found.st_ino} {found.st_mtime_ns}")
    # Opening costs one request, like asking for the size, but also returns the ETag.
    file = opened or open_to_read(place)
    known = {
        key.lower(): str(value, "ascii") if isinstance(value, bytes) else value
        for key, value in (file.metadata() or {}).items()
    }
    version = next((known[name] for name in ("etag", "generation", "last-modified") if known.get(name)), None)
    if version is None:
        system, path = file_system(place)
        version = str(retried("look at it", place, lambda: system.get_file_info(path)).mtime_ns)
    return Stamp(file.size(), version)


class StoredFile:
    """A Parquet file in a store, open to read; its footer is read only once."""

    def __init__(self, place: str) -> None:
        """Raises OSError if it cannot be read."""
        self.file = open_to_read(place)
        self.stamp = stamp_of(place, self.file)
        size = self.stamp.size

        def end(num_bytes: int) -> bytes:
            return bytes(retried("read its end", place, lambda: self.file.read_at(num_bytes, size - num_bytes)))

        self.footer = end(min(TAIL, size))
        """Footer, footer length and magic number, if it is a Parquet file."""
        length = min(size, int.from_bytes(self.footer[-8:-4], "little") + 8)
        self.footer = self.footer[-length:] if length <= len(self.footer) else end(length)

    def metadata(self) -> pq.FileMetaData:
        """Parse the footer. Raises ArrowException if this is not a Parquet file."""
        return pq.read_metadata(pa.BufferReader(self.footer))


def is_file(place: str) -> bool:
    system, path = file_system(place)
    return bool(retried("look for it", place, lambda: system.get_file_info(path)).type == pafs.FileType.File)


def open_bytes(place: str) -> io.BufferedReader:
    """Open a file for sequential reading, by lines or bytes."""
    if not is_remote(place):
        return open(place, "rb")
    return io.BufferedReader(open_to_read(place), PIECE)


def read_small(place: str) -> bytes | None:
    """Content of a small file; None if it does not exist."""
    try:
        with open_to_read(place) as file:
            return bytes(retried("read it", place, file.readall))
    except FileNotFoundError:
        return None
