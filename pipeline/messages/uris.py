"""Addresses in object stores: `s3://bucket/key`, without user credentials.

The key after the bucket is taken literally, up to options such as `?region=eu-west-1`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_NETWORK = frozenset({"scheme", "endpoint_override", "anonymous"})
_AZURE = frozenset({"blob_storage_authority", "dfs_storage_authority", "enable_tls", "credential_kind"})
OPTIONS: Mapping[str, frozenset[str]] = {
    "s3": _NETWORK | {"region"},
    "gs": _NETWORK | {"project_id"},
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hdfs": frozenset({"user", "replication"}),
}
"""Options that an address may have, by scheme."""
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_URI = re.compile(rf"({'|'.join([*OPTIONS, *ALIASES])}):/{{1,2}}([^/?]*)/?(.*?)(?:\?([A-Za-z_][\w.-]*=.*))?", re.DOTALL)
"""Scheme, bucket, key, options. In a Path, such as `data.root`, only one of the two slashes remains."""
WAY = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS, or use the machine's account",
}


class Uri(NamedTuple):
    """Parts of an address."""

    scheme: str
    bucket: str
    """Bucket, container@account, or host."""
    key: str
    options: dict[str, str]


def is_remote(place: str | Path) -> bool:
    """True for an address of an object store that data can be read from."""
    return _URI.match(str(place)) is not None


def parse(place: str | Path) -> Uri:
    """Parts of an address. Raises ValueError if it has no bucket, or if it has keys or an unknown option; the message
    for the latter does not show the address."""
    refuse_keys("an address", place)
    found = _URI.fullmatch(str(place))
    if found is None or not found[2]:
        raise ValueError(f"{place}: expected an address such as s3://bucket/folder")
    options = dict(part.partition("=")[::2] for part in (found[4] or "").split("&") if part)
    return Uri(ALIASES.get(found[1], found[1]), found[2], found[3], options)


def refuse_keys(name: str, place: str | Path) -> None:
    """Raises ValueError, with the name of the argument or setting but not its value, if an address contains keys or
    passwords, in front of its host or as an option."""
    if not (found := _URI.fullmatch(str(place))):
        return
    scheme = ALIASES.get(found[1], found[1])
    user, at, _ = found[2].rpartition("@")
    # abfs://container@account is the usual form.
    in_front = at and (":" in user or scheme in ("s3", "gs"))
    known = OPTIONS[scheme]
    if in_front or {part.partition("=")[0] for part in (found[4] or "").split("&") if part} - known:
        what = "a user or key in front of its bucket" if in_front else "an option that is not known, or a key"
        raise ValueError(
            f"{name} is an address of {scheme} with {what}, which is not shown here: an address may have the options "
            f"{', '.join(sorted(known))} and no keys; {WAY.get(scheme, 'give keys by the environment')}"
        )


def join(place: str, name: str) -> str:
    """Address of a file in a folder, given its name relative to the folder."""
    base, query = cut(place)
    return f"{base.rstrip('/')}/{name}{query}"


def name_below(place: str, folder: str) -> str | None:
    """Name of a file relative to a folder; None if the file is not below it."""
    base, root = cut(place)[0], cut(folder)[0].rstrip("/") + "/"
    return base[len(root) :] if base.startswith(root) else None


def cut(place: str) -> tuple[str, str]:
    """An address without its options, and the options with their question mark."""
    found = _URI.fullmatch(place)
    at = found.start(4) - 1 if found and found[4] else len(place)
    return place[:at], place[at:]


def uri_of(place: str | Path) -> str:
    """An address with both of its slashes, of which pathlib keeps only one."""
    return re.sub(":/+", "://", str(place), count=1)
