"""Commands that write to a store are killed at requests: a reader sees what was there before, or all that is new."""

import json
import os
import shutil
from functools import partial

import pytest
from support import depth
from support.runs.forked_commands import forked
from support.stores.faulty_proxy import proxying
from support.stores.s3_server import environment, serving_s3

from pipeline.serving import dense_files
from pipeline.serving.export import main as export
from pipeline.serving.score import main as score

REQUESTS = 99
"""More than a command of these tests makes."""


@pytest.fixture(scope="module")
def store():
    """Folder of the bucket `b`, and a proxy in front of its server."""
    with serving_s3() as (folder, port), proxying(port) as proxy:
        yield folder, proxy


def refuse(opened, model):
    raise NotImplementedError("not in this test")


def in_environment(main, variables, exports_programs, argv):
    os.environ.update(variables)
    if not exports_programs:
        dense_files.exported = refuse
    return main(argv)


def ran(proxy, main, *argv, dies=lambda number, method, path: False):
    """Run a command in its own process, which is killed at the request at which `dies` is true, before the store gets
    it. Whether it was killed."""
    before, killed = len(proxy.requests), []

    def fault(number, method, path):
        if killed or dies(number - before, method, path):
            killed.append(number)
            process.kill()
            return "cut"
        return None

    proxy.fault = fault
    variables = environment(proxy.port) | {"PIPELINE_CACHE": os.environ["PIPELINE_CACHE"]}
    # ONNX files and exported programs take seconds: the quick form has none.
    process = forked(partial(in_environment, main, variables, depth.PROVES), *argv)
    process.join()
    proxy.fault = lambda number, method, path: None
    assert killed or process.exitcode == 0
    return bool(killed)


def at_last_object(name):
    return [lambda number, method, path: method == "PUT" and path.split("?")[0].endswith(name)]


def at_each_request():
    return [lambda number, method, path, at=at: number == at for at in range(1, REQUESTS)]


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


DEPTH = pytest.mark.parametrize("deep", [False, pytest.param(True, marks=pytest.mark.prove(every=True))])


@DEPTH
def test_a_killed_export_publishes_the_old_or_the_new(store, trained, tmp_path, deep):
    folder, proxy = store
    shutil.rmtree(folder / "servables", ignore_errors=True)

    def publish(name, **how):
        arguments = (trained.run_dir, "--out", tmp_path / name, "--publish", "s3://b/servables")
        killed = ran(proxy, export, *arguments, **how)
        served = (folder / "servables/current").read_text().strip()
        assert content(folder / "servables" / served) == content(tmp_path / served)
        return killed, served

    assert publish("old") == (False, "old")
    seen = []
    for dies in at_each_request() if deep else at_last_object("/current"):
        killed, served = publish("new", dies=dies)
        if not killed:
            break
        seen.append(served)
    assert set(seen) == {"old"}
    assert len(seen) > 10 or not deep
    assert publish("new") == (False, "new")


@DEPTH
def test_a_killed_scoring_leaves_nothing_or_all_scores(store, trained, tmp_path, deep):
    folder, proxy = store
    shutil.rmtree(folder / "scores", ignore_errors=True)
    data = f"{trained.workflow.data.root}/t*.parquet"
    assert not ran(proxy, score, trained.run_dir, data, "--out", tmp_path / "scores")
    expected = content(tmp_path / "scores")

    def scored(**how):
        killed = ran(proxy, score, trained.run_dir, data, "--out", "s3://b/scores", **how)
        there = content(folder / "scores")
        complete = there.pop("_SUCCESS", None)
        assert complete is None or (json.loads(complete)["files"], there) == (sorted(expected), expected)
        return killed, complete is not None

    kills = 0
    for dies in at_each_request() if deep else at_last_object("_SUCCESS"):
        killed, complete = scored(dies=dies)
        if not killed:
            break
        assert not complete
        kills += 1
    assert kills > (len(expected) + 2 if deep else 0)
    assert scored() == (False, True)
