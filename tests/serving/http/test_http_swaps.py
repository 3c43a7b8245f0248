"""Swaps of trained servables under load: each answer has the bits of the servable whose version it names."""

import json
import threading
import time
from collections import Counter

import numpy as np
import pytest
from conftest import make_workflow, write_data
from evaluated_runs import train_and_evaluate
from fake_served import publish
from oip import json_request
from test_http_server import post, running

import pipeline
from pipeline.serving.export import main as export_main
from pipeline.serving.http import server as server_module
from pipeline.serving.servable import read_servable
from pipeline.serving.served_model import ServedModel, open_served
from pipeline.settings.optimizer import Adam

CLIENTS = 4
NAMES = ("a", "b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two servables of the same features, trained at other rates, and the examples to ask for."""
    pytest.importorskip("onnxruntime")
    root, folder = write_data(tmp_path_factory.mktemp("data"), num_train=90), tmp_path_factory.mktemp("servables")
    workflow = make_workflow(root, epochs=1)
    for name, lr in zip(NAMES, (0.05, 0.1), strict=True):
        optimizer = workflow.optimizer.model_copy(update={"rows": Adam(lr=lr)})
        run = train_and_evaluate(workflow.model_copy(update={"optimizer": optimizer}), tmp_path_factory.mktemp("run"))
        assert export_main([str(run.run_dir), "--out", str(folder / name), "--commit", "last"]) == 0
    return folder, run.test


@pytest.mark.prove
@pytest.mark.parametrize(("backend", "swaps"), [("torch", 100), ("onnx", 20)])
def test_under_load_each_answer_has_the_bits_of_the_version_that_it_names(folder, monkeypatch, backend, swaps):
    folder, table = folder
    monkeypatch.setattr(server_module, "SWAP_SECONDS", 0.01)
    tables = [table.slice(at, size) for at, size in ((0, 1), (1, 2), (3, 5), (8, 1))]
    expected = {}
    for name in NAMES:
        with pipeline.open_servable(folder / name, backend=backend) as opened:
            bodies = [json_request(one, ServedModel(opened).inputs) for one in tables]
            scores = [opened.predict(one) for one in tables]
        found = [{name: one.column(name).to_numpy().tobytes() for name in one.column_names} for one in scores]
        expected[read_servable(folder / name).digest] = found
    versions = list(expected)
    assert all(one != other for one, other in zip(*expected.values(), strict=True))
    ended, answers, wrong, latest = threading.Event(), Counter(), [], {}

    def ask(client):
        number = client
        while not ended.is_set() or number < 2 * len(tables):
            number += 1
            status, said = post(port, bodies[number % len(tables)], "/v2/models/small/infer")
            told = json.loads(said)
            version = told.get("model_version")
            outputs = {one["name"]: np.float32(one["data"]).tobytes() for one in told.get("outputs", ())}
            if status != 200 or outputs != expected[version][number % len(tables)]:
                wrong.append((status, told))
            answers[version] += 1
            latest[client] = version

    publish(folder, NAMES[0])
    with running(folder, lambda path: open_served(path, 1 << 20, None, backend), max_bytes=1 << 22) as port:
        clients = [threading.Thread(target=ask, args=(client,)) for client in range(CLIENTS)]
        for thread in clients:
            thread.start()
        seen = 0
        for swap in range(1, swaps + 1):
            publish(folder, NAMES[swap % 2])
            until = time.monotonic() + 20
            # Every client has had an answer of it before the next one comes.
            while set(latest.values()) != {versions[swap % 2]} and time.monotonic() < until and not wrong:
                time.sleep(0.002)
            seen += set(latest.values()) == {versions[swap % 2]}
        ended.set()
        for thread in clients:
            thread.join(20)
    assert not wrong, wrong[:3]
    assert seen == swaps
    assert set(answers) == set(versions)
    assert min(answers.values()) >= swaps
