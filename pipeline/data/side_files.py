"""Copies of the files that features read, kept by runs and servables so that a feature's output never changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.files.find import place_of
from pipeline.files.stores import open_to_read
from pipeline.storage.files import Files, checksum
from pipeline.workflow import Data

FOLDER = "features"
"""Folder in a run directory for the copies, each named by its checksum."""


def names_of(data: Data) -> list[str]:
    """Names of the files that the features read, as given in the features."""
    return list(dict.fromkeys(f.side_file for f in data.features if f.side_file is not None))


def side_digests(data: Data) -> dict[str, str]:
    """Checksum of each file. Raises ValueError if one cannot be read."""
    return {name: checksum(_content(data, name)) for name in names_of(data)}


def keep_side_files(data: Data, folder: Path, files: Files) -> None:
    """Copy the files to a folder, unless it already contains them."""
    for name in names_of(data):
        content = _content(data, name)
        files.make_folder(folder)
        if not (path := folder / copy_name(checksum(content))).exists():
            files.replace(path, [content])


def copy_name(digest: str) -> str:
    return f"{digest}.parquet"


def with_copies(data: Data, digests: Mapping[str, str], folder: Path) -> Data:
    """The data, with features that read the copies in a folder. Raises ValueError if a copy is damaged or missing."""
    if not digests:
        return data
    for name, digest in digests.items():
        path = folder / copy_name(digest)
        try:
            found = checksum(path.read_bytes())
        except FileNotFoundError:
            found = "none"
        if found != digest:
            raise ValueError(f"{path}, the copy of {name} that data.features names, is damaged or missing")
    places = {name: str((folder / copy_name(digest)).absolute()) for name, digest in digests.items()}
    features = tuple(
        f.model_copy(update={f.side_field: places[f.side_file]}) if f.side_file is not None else f
        for f in data.features
    )
    return data.model_copy(update={"features": features})


def _content(data: Data, name: str) -> bytes:
    place = place_of(name, data.root)
    try:
        with open_to_read(place) as opened:
            return bytes(opened.read())
    except OSError as error:
        raise ValueError(f"{place}, which data.features names, cannot be read ({error})") from error
