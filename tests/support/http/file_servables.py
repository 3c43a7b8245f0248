"""Servables that consist of one file. Scores are a function of version and rows, so each response can be recomputed."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.serving.http.admission import Admission
from pipeline.serving.http.app import Api
from pipeline.serving.http.current import Current
from pipeline.serving.http.request import probe
from pipeline.serving.http.tensors import DATATYPES
from pipeline.serving.servable import CURRENT_FILE, SERVABLE_MANIFEST
from pipeline.serving.serve import main
from pipeline.serving.served_model import Answer, InputSpec

OUTPUTS = ("click.logit", "click.probability")
COLUMNS = (
    InputSpec("price", "FP32", False),
    InputSpec("user", "UINT64", False),
    InputSpec("country", "BYTES", False),
    InputSpec("history", "INT64", True),
    InputSpec("tags", "BYTES", True),
)


TABLE = pa.table({
    "price": pa.array([1.5, None, -0.0], pa.float32()),
    "user": pa.array([2**64 - 1, None, 2**63 + 1], pa.uint64()),
    "country": pa.array(["\u00e9t\u00e9", None, ""], pa.string()),
    "history": pa.array([[-(2**63), None, 2**53 + 1], None, []], pa.list_(pa.int64())),
    "tags": pa.array([[], ["a", "", None], ["\U0001f600"]], pa.list_(pa.string())),
})  # fmt: skip
"""Every kind of column, with nulls and values that are easily corrupted."""


def arrow_type(spec):
    inner = pa.string() if spec.datatype == "BYTES" else DATATYPES[spec.datatype].arrow
    return pa.list_(inner) if spec.is_list else inner


def scores_of(version, table):
    """Logits and probabilities [B], computed from the number in the version and the Python representation of each
    row."""
    rows = [repr(row).encode() for row in zip(*map(plain, table.columns), strict=True)]
    logits = np.array([(sum(row) * 31 + len(row)) % 1009 / 16 for row in rows], np.float32) + np.float32(int(version))
    return {OUTPUTS[0]: logits, OUTPUTS[1]: np.float32(1) / (1 + np.exp(-logits / 1009))}


def plain(column):
    """Values of a column as Python objects; texts are strings, whether they arrived as text or as bytes."""
    return [text_of(value) for value in column.to_pylist()]


def text_of(value):
    if isinstance(value, list):
        return [text_of(each) for each in value]
    return value.decode() if isinstance(value, bytes) else value


class Fake:
    """A servable as the server sees it. `seconds`: duration of a prediction."""

    def __init__(self, version="1", inputs=COLUMNS, name="fake", features="f", seconds=0.0, work=None):
        self.name, self.version, self.inputs, self.features = name, version, tuple(inputs), features
        self.outputs = OUTPUTS
        self.seconds = seconds
        self.tables = []
        """Tables of the requests so far."""
        self.work = work
        """Called with each table; `predict` raises its exceptions."""
        self.closed = False
        self.users = 0
        self._lock = threading.Lock()

    def predict(self, table):
        with self._in_use():
            assert table.column_names == [spec.name for spec in self.inputs]
            assert all(column.num_chunks == 1 for column in table.columns)
            if self.work:
                self.work(table)
            time.sleep(self.seconds)
            self.tables.append(table)
            return Answer(scores_of(self.version, table), {"user": sum(v is None for v in table[0].to_pylist())})

    @contextmanager
    def _in_use(self):
        with self._lock:
            assert not self.closed
            self.users += 1
        try:
            yield
        finally:
            with self._lock:
                assert not self.closed
                self.users -= 1

    def counters(self):
        return {"pages_hit": 7, "keys": sum(table.num_rows for table in self.tables)}

    def example(self):
        return pa.table({spec.name: pa.array([None], arrow_type(spec)) for spec in self.inputs})

    def close(self):
        assert not self.closed
        assert not self.users
        self.closed = True


def write_fake(folder: Path, version="1", **fields):
    """Write a servable; its manifest determines what `open_fake` makes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SERVABLE_MANIFEST).write_text(json.dumps({"version": version, **fields}))
    return folder


def open_fake(folder: Path, memory=0):
    try:
        fields = json.loads((folder / SERVABLE_MANIFEST).read_text())
    except ValueError as error:
        raise ValueError(f"{folder}: damaged: {error}") from error
    inputs = [InputSpec(name, datatype, is_list) for name, datatype, is_list in fields.pop("inputs", ())]
    if fields.pop("fails", False):
        fields["work"] = fail
    return Fake(inputs=inputs or COLUMNS, **fields)


def fail(table):
    raise OSError("rows.pages: page 3 is damaged")


@contextmanager
def api_of(folder: Path, fake: Fake, max_requests=16, max_bytes=1 << 20, deadline=5.0, threads=2):
    """Application around this servable, without a server. Leaves no threads behind."""
    current = Current(write_fake(folder), lambda folder: fake, probe)
    with ThreadPoolExecutor(threads) as pool:
        yield Api(current, Admission(max_requests, max_bytes), pool, deadline)
    current.close()
    assert fake.closed


def publish(folder: Path, name: str):
    """Name the servable to serve, with an atomic rename."""
    (folder / "partial").write_text(f"{name}\n")
    os.rename(folder / "partial", folder / CURRENT_FILE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_fake))
