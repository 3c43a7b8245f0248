"""Swaps: the servable that `current` names is served from the next request on, and only if it answers."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest
from support.depth import some
from support.http.file_servables import COLUMNS, TABLE, open_fake, publish, scores_of, write_fake
from support.http.oip import call, json_request

from pipeline.serving.http.admission import Admission
from pipeline.serving.http.app import Api
from pipeline.serving.http.current import Current
from pipeline.serving.http.request import probe
from pipeline.serving.servable import CURRENT_FILE


@pytest.fixture
def opened():
    """Every servable that was opened."""
    return []


@pytest.fixture
def current(tmp_path, opened):
    publish(tmp_path, write_fake(tmp_path / "a", "1").name)
    current = make_current(tmp_path, opened)
    yield current
    current.close()
    assert all(fake.closed for fake in opened)


def make_current(folder, opened):
    def open_one(path):
        opened.append(open_fake(path))
        return opened[-1]

    return Current(folder, open_one, probe)


def test_a_servable_itself_is_served_and_never_replaced(tmp_path, opened):
    current = make_current(write_fake(tmp_path, "5"), opened)
    publish(tmp_path, write_fake(tmp_path / "b", "6").name)
    current.look()
    assert current.served.version == "5"
    assert len(opened) == 1
    current.close()


def test_the_first_servable_has_answered_before_it_is_served(current, opened):
    assert opened[0].tables[0].num_rows == 1


def test_another_name_is_served_and_the_servable_before_closed(tmp_path, current, opened, capsys):
    publish(tmp_path, write_fake(tmp_path / "b", "2").name)
    current.look()
    assert current.served.version == "2"
    assert [fake.closed for fake in opened] == [True, False]
    assert len(opened[1].tables) == 1
    assert current.swaps == {"done": 1, "refused": 0}
    assert capsys.readouterr().err == "swapped: b (2) is served\n"


def test_a_name_that_is_written_again_opens_nothing(tmp_path, current, opened):
    publish(tmp_path, "a")
    current.look()
    current.look()
    assert len(opened) == 1


def test_a_file_that_is_not_written_again_is_not_read(tmp_path, current, monkeypatch):
    monkeypatch.setattr(Current, "_read_name", lambda self: pytest.fail("read"))
    current.look()


def test_who_began_with_a_servable_ends_with_it(tmp_path, current, opened):
    publish(tmp_path, write_fake(tmp_path / "b", "2").name)
    with current.lease() as first:
        with current.lease() as again:
            current.look()
            assert first is again is opened[0]
            with current.lease() as second:
                assert second is opened[1]
        assert not first.closed
    assert first.closed
    assert not second.closed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"fails": True}, "rows.pages: page 3 is damaged"),
        ({"features": "g"}, "b: it has the features g, and the servable in use has f"),
        ({"name": "other"}, "b: it has the name other, and the servable in use has fake"),
        ({"inputs": [["x", "INT64", True], ["x.lengths", "INT64", False]]}, "would both have a tensor 'x.lengths'"),
    ],
)
def test_a_servable_that_does_not_fit_is_refused_once(tmp_path, current, opened, capsys, fields, said):
    publish(tmp_path, write_fake(tmp_path / "b", "2", **fields).name)
    for _ in range(3):
        current.look()
    assert current.served is opened[0]
    assert len(opened) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.endswith("; 1 is still served\n")
    assert err.count("\n") == 1
    assert current.swaps == {"done": 0, "refused": 1}
    # Mended, and published once more.
    publish(tmp_path, write_fake(tmp_path / "b", "2").name)
    current.look()
    assert current.served.version == "2"


@pytest.mark.parametrize(
    "content", ["", "\n", "..\n", "../a\n", "a/\n", "/a\n", "a\nb\n", "a\0\n", "\udcff\n", "gone\n"]
)
def test_a_name_of_no_servable_is_refused(tmp_path, current, opened, capsys, content):
    (tmp_path / CURRENT_FILE).write_bytes(content.encode(errors="surrogateescape"))
    current.look()
    current.look()
    assert current.served is opened[0]
    assert current.swaps["refused"] == 1
    assert capsys.readouterr().err.count("refused: ") == 1


def test_a_missing_current_file_is_refused_until_it_is_back(tmp_path, current, opened):
    os.unlink(tmp_path / CURRENT_FILE)
    current.look()
    assert (current.served, current.swaps["refused"]) == (opened[0], 1)
    publish(tmp_path, write_fake(tmp_path / "b", "2").name)
    current.look()
    assert current.served.version == "2"


def test_there_is_nothing_to_begin_with_in_an_empty_folder(tmp_path, opened):
    with pytest.raises(ValueError, match=r"holds no servable: it has no manifest.json, and no file `current`"):
        make_current(tmp_path, opened)
    publish(tmp_path, "gone")
    with pytest.raises(OSError, match="gone"):
        make_current(tmp_path, opened)
    publish(tmp_path, write_fake(tmp_path / "bad", "1", fails=True).name)
    with pytest.raises(Exception, match="page 3 is damaged"):
        make_current(tmp_path, opened)
    assert opened[0].closed


@pytest.mark.parametrize("swaps", some((10, 100), 10))
def test_under_load_each_answer_is_of_the_version_that_it_names(tmp_path, opened, swaps):
    """Requests by several tasks and threads, while another thread swaps one servable after the other."""
    publish(tmp_path, write_fake(tmp_path / "v0", "0").name)
    current, ended = make_current(tmp_path, opened), threading.Event()
    rng = np.random.default_rng(1)
    tables = [TABLE.take(pa.array(rng.integers(0, 3, size))) for size in (1, 2, 7)]
    expected = [{str(v): scores_of(str(v), table) for v in range(swaps + 1)} for table in tables]
    seen = set()

    async def ask(app, n):
        body = json_request(tables[n % 3], COLUMNS)
        while not ended.is_set():
            reply = await call(app, "POST", "/v2/models/fake/infer", body)
            assert reply.status == 200
            version = reply.json["model_version"]
            seen.add(version)
            for output in reply.json["outputs"]:
                assert np.float32(output["data"]).tobytes() == expected[n % 3][version][output["name"]].tobytes()

    def swap():
        for version in range(1, swaps + 1):
            publish(tmp_path, write_fake(tmp_path / f"v{version}", str(version), seconds=0.002).name)
            current.look()
            until = time.monotonic() + 10
            while len(opened[-1].tables) < 5 and time.monotonic() < until:
                time.sleep(0.001)
        ended.set()

    async def scenario():
        app = Api(current, Admission(16, 1 << 20), threads, 30.0).app()
        await asyncio.gather(*(ask(app, n) for n in range(6)), asyncio.to_thread(swap))

    with ThreadPoolExecutor(3) as threads:
        asyncio.run(scenario())
    current.close()
    assert seen == {str(v) for v in range(swaps + 1)}
    assert current.swaps == {"done": swaps, "refused": 0}
    assert all(fake.closed for fake in opened)
