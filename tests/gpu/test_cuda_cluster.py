"""A LocalCUDACluster of one worker runs the quickstart, in the worker's process, as nannies set it up."""

import json
from pathlib import Path

import pytest
from support.gpu import on_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(bool(on_gpu.reason()), reason=on_gpu.reason() or "there is a GPU"),
    pytest.mark.filterwarnings("ignore"),
]
ROOT = Path(__file__).parent.parent.parent


def train(arguments):
    from pipeline.run import main

    return main(arguments)


def test_a_worker_of_a_cuda_cluster_runs_the_quickstart(tmp_path):
    from dask_cuda import LocalCUDACluster
    from distributed import Client

    small = ["data.synthetic.train_examples=400000", "schedule.epochs=1", f"data.root={tmp_path / 'data'}"]
    settings = [part for setting in small for part in ("--set", setting)]
    arguments = [str(ROOT / "workflows" / "quickstart.py"), "--run-dir", str(tmp_path / "run"), *settings]
    with (
        LocalCUDACluster(n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        for folder in (Path(__file__).parent, ROOT / "tests" / "support"):
            client.run(lambda path: __import__("sys").path.insert(0, path), str(folder))
        assert client.submit(train, arguments, pure=False).result(timeout=400) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["auc"] > 0.55
    assert result["stages"]["gpu train"] > 0
