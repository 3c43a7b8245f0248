"""One flipped bit of a servable never makes a wrong score: it is refused at opening, or reported by the request that
meets it, and all others are answered as before."""

import asyncio
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import make_workflow, write_data
from support.depth import deep
from support.http.oip import call, json_request
from support.runs.evaluated_runs import train_and_evaluate

import pipeline
from pipeline.serving.export import main as export_main
from pipeline.serving.http.admission import Admission
from pipeline.serving.http.answer import probe
from pipeline.serving.http.app import Api
from pipeline.serving.http.current import Current
from pipeline.serving.servable import (
    FENCES_FILE,
    ONNX_FILE,
    REQUEST_FILE,
    RESPONSE_FILE,
    WEIGHTS_FILE,
    read_servable,
)
from pipeline.serving.served_model import open_served
from pipeline.workflow import Category

SEED, ROWS_OF_REQUEST = 20261122, 3
CATEGORIES = (Category(name="item"), Category(name="user"))
UNREAD = {
    "torch": {ONNX_FILE, REQUEST_FILE, RESPONSE_FILE},
    "onnx": {WEIGHTS_FILE, REQUEST_FILE, RESPONSE_FILE},
}


@pytest.fixture(scope="module")
def servable(tmp_path_factory):
    """A servable of several pages, and requests that touch every key of it, each a few pages."""
    pytest.importorskip("onnxruntime")
    root = write_data(tmp_path_factory.mktemp("data"), num_train=160, num_keys=5000)
    workflow = make_workflow(root, categories=CATEGORIES, embedding_dim=40, epochs=1)
    run = train_and_evaluate(workflow, tmp_path_factory.mktemp("run"))
    out = tmp_path_factory.mktemp("servables") / "one"
    assert export_main([str(run.run_dir), "--out", str(out), "--commit", "last"]) == 0
    table = pa.concat_tables([run.test, *(pq.read_table(root / f"train-{n}.parquet") for n in range(2))])
    return out, [table.slice(at, ROWS_OF_REQUEST) for at in range(0, len(table), ROWS_OF_REQUEST)]


def bits(logits):
    return np.asarray(logits, np.float32).view(np.uint32).tolist()


def pages_of(folder, opened, table):
    """Pages that the table's keys are in."""
    keys = [opened.rows(column.name, table.column(column.name).combine_chunks())["key"] for column in CATEGORIES]
    fences = np.fromfile(folder / FENCES_FILE, np.uint32)
    prefixes = np.concatenate([column.to_numpy() for column in keys]) >> np.uint64(32)
    return set((np.searchsorted(fences, prefixes, side="right") - 1).tolist())


async def ask(app, name, bodies):
    return [await call(app, "POST", f"/v2/models/{name}/infer", body) for body in bodies]


def served(folder, backend, tables):
    """The replies to requests with these tables. Raises what ends a server of the folder."""
    current = Current(folder, lambda folder: open_served(folder, 1 << 20, None, backend), probe)
    with ThreadPoolExecutor(1) as threads:
        app = Api(current, Admission(16, 1 << 20), threads, 30.0).app()
        replies = asyncio.run(ask(app, "small", [json_request(table, current.served.inputs) for table in tables]))
    current.close()
    return replies


def flip(path, at, bit):
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


@pytest.mark.prove
def test_a_flipped_bit_never_gives_a_wrong_score(servable, tmp_path):
    whole, tables = servable
    expected, page_bytes = {}, read_servable(whole).page_bytes
    for backend in ("torch", "onnx"):
        with pipeline.open_servable(whole, backend=backend) as opened:
            expected[backend] = [bits(opened.predict(table).column("click.logit")) for table in tables]
    with pipeline.open_servable(whole) as opened:
        touched = [pages_of(whole, opened, table) for table in tables]
    num_pages = (whole / "rows" / "0000").stat().st_size // page_bytes
    assert num_pages >= 6
    assert set.union(*touched) >= set(range(num_pages))
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    rng, ends = np.random.default_rng(SEED), Counter()
    for number in range(deep(60, 200)):
        # Half of them in the rows, which alone are read while requests come.
        name = files[rng.integers(len(files))] if number % 2 else files[-1]
        backend = ("torch", "onnx")[number // 2 % 2]
        folder = tmp_path / f"{number}"
        shutil.copytree(whole, folder)
        at, bit = int(rng.integers((folder / name).stat().st_size)), int(rng.integers(8))
        flip(folder / name, at, bit)
        case = f"seed {SEED}, case {number}: bit {bit} of byte {at} of {name}, {backend}"
        page = at // page_bytes if name.parent.name else None
        message = f"{folder / name}: " if page is None else f"{folder / name}: page {page} "
        try:
            replies = served(folder, backend, tables)
        except (ValueError, OSError) as error:
            replies = []
            ends["refused"] += 1
            said = str(error)
        else:
            said = message
            assert page is not None or name.name in UNREAD[backend], case
        assert message in said, f"{case}: {said}"
        for reply, pages, logits in zip(replies, touched, expected[backend], strict=bool(replies)):
            assert reply.status == (500 if page in pages else 200), case
            if reply.status == 500:
                assert message in reply.json["error"], f"{case}: {reply.json}"
            else:
                assert bits(reply.json["outputs"][0]["data"]) == logits, case
            ends[reply.status] += 1
        shutil.rmtree(folder)
    assert min(ends["refused"], ends[500], ends[200]) > deep(60, 200) // 5, ends
