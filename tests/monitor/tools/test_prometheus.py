"""Metrics of runs in Prometheus's text format, as its own parser reads them; and with Dask's own at /metrics."""

import urllib.request

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.runs.harness import make_driver
from support.runs.session_lines import BEGAN, append, begin, commit, evaluated, tick, two_sessions, write_run

from pipeline.cluster.local import local_client
from pipeline.monitor.live.lines import LIVE, read_live
from pipeline.monitor.tools.prometheus import COUNTERS, GAUGES, metrics_of


def parsed(text):
    """Samples by name and labels but `run`, by run, for those of runs."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name.startswith("pipeline_run_"):
                found.setdefault(labels.pop("run"), {})[sample.name, *labels.values()] = sample.value
    return found


def scraped():
    return parsed(generate_latest(REGISTRY).decode())


def test_all_metrics_of_a_run_have_its_newest_values(tmp_path):
    run = write_run(tmp_path / "run", two_sessions())
    with metrics_of(run):
        found = scraped()[str(run)]
    assert {name for name, *_ in found} == {f"pipeline_run_{name}_total" for name in COUNTERS} | {
        f"pipeline_run_{name}" for name in GAUGES
    }
    expected = {
        ("examples_total",): 1000, ("examples_per_second",): 300, ("progress_ratio",): 0.1,
        ("wait_seconds_total", "read"): 0.5, ("wait_seconds_total", "train"): 1.0,
        ("stage_seconds_total", "train"): 1.0,
        ("hits_total", "device"): 6000, ("hits_total", "new"): 1000,
        ("disk_bytes_total", "read"): 100_000, ("disk_bytes_total", "written"): 100_000,
        ("hit_ratio", "device"): 0.6, ("hit_ratio", "host"): 0.5,
        ("learning_rate", "dense"): 0.001, ("rows", "host"): 800, ("capacity_rows", "host"): 900,
        ("last_commit_seconds",): 0.25,
        ("last_commit_timestamp_seconds",): BEGAN + 86_400 + 2.95,
        ("metric", "auc", "validation"): 0.76, ("metric", "logloss", "test"): 0.41,
    }  # fmt: skip
    assert {name: found[f"pipeline_run_{name[0]}", *name[1:]] for name in expected} == pytest.approx(expected)


def test_two_runs_of_a_process_have_their_own_metrics(tmp_path):
    one = write_run(tmp_path / "one", [begin(), tick(1.0, 10)])
    other = write_run(tmp_path / "other", [begin(), tick(1.0, 20)])
    with metrics_of(one):
        with metrics_of(other):
            text = generate_latest(REGISTRY).decode()
            examples = {run: of["pipeline_run_examples_total",] for run, of in parsed(text).items()}
            assert examples == {str(one): 10, str(other): 20}
            assert text.count("# TYPE pipeline_run_examples_total counter") == 1
        assert scraped().keys() == {str(one)}
    assert "pipeline_run" not in generate_latest(REGISTRY).decode()


def test_each_scrape_includes_the_lines_written_since(tmp_path):
    run = tmp_path / "run"
    with metrics_of(run):
        assert scraped() == {}
        append(run, [begin(), tick(1.0, 100)])
        assert scraped()[str(run)]["pipeline_run_examples_per_second",] == 100
        append(run, [tick(3.0, 500), commit(3.1, 7)])
        found = scraped()[str(run)]
        assert (found["pipeline_run_examples_per_second",], found["pipeline_run_last_commit_seconds",]) == (200, 0.25)
        append(run, [begin(BEGAN + 99, examples=300)])
        assert "pipeline_run_examples_total" not in {name for name, *_ in scraped()[str(run)]}


def test_a_file_that_began_from_scratch_is_read_from_its_start(tmp_path):
    run = write_run(tmp_path / "run", [begin(), tick(1.0, 800), evaluated(9.0, 800)])
    with metrics_of(run):
        assert ("pipeline_run_metric", "auc", "validation") in {name[:3] for name in scraped()[str(run)]}
        (run / LIVE).unlink()
        append(run, [begin(), tick(1.0, 50)])
        scraped()
        found = scraped()[str(run)]
    assert found["pipeline_run_examples_total",] == 50
    assert "pipeline_run_metric" not in {name for name, *_ in found}


def test_dasks_scheduler_serves_the_metrics_of_a_real_run(tmp_path, small_workflow):
    run_dir = tmp_path / "run"
    with metrics_of(run_dir), local_client() as client:
        result = make_driver(small_workflow(), run_dir, client, device_rows=130, host_rows=24).run()
        server = client.cluster.scheduler.http_server
        with urllib.request.urlopen(f"http://{server.address}:{server.port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
    found = parsed(text)[str(run_dir)]
    assert "dask_scheduler_clients" in text, "Dask's own metrics"
    assert found["pipeline_run_examples_total",] == result["examples"]
    assert found["pipeline_run_progress_ratio",] == 1
    assert found["pipeline_run_metric", "auc", "test"] == result["auc"]
    tiers = result["tiers"]
    assert found["pipeline_run_hits_total", "disk"] == tiers["disk"]["hits"] > 0
    row_bytes = next(line.row_bytes for line in read_live(run_dir) if line.event == "begin")
    rows_read = tiers["disk"]["rows_out"] + tiers["disk"]["rows_read"]
    assert found["pipeline_run_disk_bytes_total", "read"] == row_bytes * rows_read
    assert found["pipeline_run_stage_seconds_total", "train"] == pytest.approx(result["stages"]["train"], abs=1e-3)
