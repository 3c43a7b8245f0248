"""A worker that cannot join a run says why."""

from types import SimpleNamespace

import pytest

from pipeline.cluster import run_plugin
from pipeline.cluster.run_plugin import RunPlugin
from pipeline.errors import LostTouch


def test_a_worker_that_does_not_meet_the_others_says_its_number(small_workflow, monkeypatch):
    def miss(*args, **named):
        raise RuntimeError("nobody came in 5 s")

    monkeypatch.setattr(run_plugin, "Store", lambda *args, **named: None)
    monkeypatch.setattr(run_plugin, "Group", miss)
    request = SimpleNamespace(
        cpus=(), model=None, workflow=small_workflow().model_dump_json(), store_host="127.0.0.1", store_port=1,
        store_folder="", timeout_seconds=1.0, rank=SimpleNamespace(number=1), check=False, token="run",
        hosts=("127.0.0.1",),
    )  # fmt: skip
    with pytest.raises(LostTouch, match="worker 1 did not meet the others: nobody came in 5 s"):
        RunPlugin(ours=False).join(request, None)
