"""The machine that a run takes (memory, GPUs, workers of a scheduler), and the advice at its end."""

from types import SimpleNamespace

import pytest

from pipeline import run
from pipeline.device.device import RAM
from pipeline.device.gpu import GpuInfo
from pipeline.driver import open as config
from pipeline.driver.advice import advice_after
from pipeline.machine import limits
from pipeline.preflight.setup import set_up
from pipeline.settings.changes import override


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_a_share_of_memory_is_refused_for_workers_of_a_scheduler(refused, workflow_file, device):
    """Nobody listens there: that is not even looked at."""
    argv = ("--scheduler", "tcp://127.0.0.1:9", "--workers", 8, "--set", f"device={device}")
    said = refused(workflow_file, *argv, "--set", "storage.device=80 %")
    assert "storage.device is 80 %, and how much memory of the workers' machines is free is not known here" in said
    assert "give it as a size" in said


def test_a_processor_without_bfloat16_is_reported_before_the_run(small_workflow, monkeypatch):
    workflow = small_workflow().with_settings({"model.precision": "bfloat16"})
    for fast in (True, False):
        monkeypatch.setattr("pipeline.preflight.setup.fast_in_bfloat16", lambda fast=fast: fast)
        said = []
        set_up(workflow, RAM, said.append)
        assert ["no instructions for it" in line for line in said] == [True] * (not fast)


def test_the_memory_of_this_machine_limits_only_its_own_workers(workflow_file, monkeypatch):
    monkeypatch.setattr(limits, "memory", lambda: 1 << 20)
    workflow = override(run.load(workflow_file), ["storage.disk=1 GiB"])
    set_up(workflow, RAM, run.say, 2, here=False)
    with pytest.raises(ValueError, match="map of 2 workers add up to"):
        set_up(workflow, RAM, run.say, 2)


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine as NVML reports it: 2 and 1 MiB are free."""
    gpus = [GpuInfo(n, f"GPU-{n}", (2 - n) << 20) for n in range(2)]
    monkeypatch.setattr(config, "gets_gpu", lambda name: name != "cpu")
    monkeypatch.setattr(config, "read_gpus", lambda: gpus)


def test_more_workers_than_gpus_are_refused_with_both_numbers(refused, workflow_file, two_gpus):
    said = refused(workflow_file, "--workers", 3, "--set", "device=cuda")
    assert "--workers 3: each needs its own GPU, and 2 can be used here (seen by NVML" in said
    assert "use fewer workers, or set device to cpu" in said


def test_a_slab_is_refused_unless_every_gpu_has_room_for_it(refused, workflow_file, two_gpus):
    said = refused(workflow_file, "--workers", 2, "--set", "device=auto", "--set", "storage.device=1.5 MiB")
    assert "storage.device is 1536 KiB, and 1 MiB of the GPU's memory are free" in said


def test_a_share_of_gpu_memory_is_taken_only_where_it_is_known(workflow_file, two_gpus, monkeypatch):
    workflow = run.load(workflow_file).model_copy(update={"device": "cuda"})
    share = workflow.with_settings({"storage.device": "50 %"})
    device, spec = config.recruit(share, 2, None)
    assert (device.on_gpu, device.free_bytes(), spec.gpus) == (True, 1 << 20, ("GPU-0", "GPU-1"))
    assert config.recruit(workflow, 9, "tcp://other:1")[0].on_gpu, "the scheduler's machines have other GPUs"
    with pytest.raises(ValueError, match=r"storage.device is 50%?.*not known here; give it as a size"):
        config.recruit(share, 2, "tcp://other:1")


def driver_after(seconds=100.0, commit=0.0, keys=10, left=0, every=None):
    lines = []
    ended = SimpleNamespace(seconds=seconds, waits={"commit": commit}, text="training waited 0 %")
    counts = {"trained": {"keys": keys, "device_to_host": left, "device_to_disk": 0}}
    workflow = SimpleNamespace(commit=SimpleNamespace(every_blocks=every))
    return SimpleNamespace(
        live=SimpleNamespace(ended=ended, on_line=lines.append),
        history=SimpleNamespace(tiers=SimpleNamespace(counts=lambda: counts)),
        setup=SimpleNamespace(workflow=workflow),
    )


@pytest.mark.parametrize(
    ("driver", "said", "unsaid"),
    [
        (driver_after(), "more memory would not help", "--explain"),
        (driver_after(left=1), "--explain", "would not help"),
        (driver_after(commit=30.0, every=4), "commit.every_blocks 8 instead of 4 would save about 15 s", "--explain"),
        (driver_after(commit=5.0, every=4), "would not help", "every_blocks"),
    ],
)
def test_advice_follows_from_what_the_run_counted(driver, said, unsaid):
    text = advice_after(driver)
    assert said in text
    assert unsaid not in text


@pytest.mark.parametrize("driver", [driver_after(keys=0), driver_after(seconds=59.0, commit=15.0, every=4, left=1)])
def test_a_session_that_trained_little_gets_no_advice(driver):
    assert advice_after(driver) is None
