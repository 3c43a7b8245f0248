"""Who may take part in a run, by what workers say of themselves."""

from dataclasses import replace

import pytest
from support.runs.harness import sizes_of

from pipeline.cluster.check import check_machines, min_disk_bytes
from pipeline.cluster.run_plugin import WorkerInfo
from pipeline.messages.sizes import format_size_down
from pipeline.workflow import Workflow

CPU = WorkerInfo(
    host="a", pid=1, versions={"torch": "2"}, threads=12, memory_limit=0, memory={0: 1 << 30}, reach=(), disk=7,
    free_bytes=1000, device="cpu", gpu="",
)  # fmt: skip
H100 = replace(CPU, device="H100", gpu="0000:01:00.0")


def check(machines, workflow, minimum=0):
    check_machines(machines, workflow.device, workflow.storage, minimum)


def refusal(machines, workflow: Workflow, device, minimum=0):
    with pytest.raises(ValueError, match="worker") as raised:
        check(machines, workflow.model_copy(update={"device": device}), minimum)
    return str(raised.value)


@pytest.mark.parametrize("device", ["cuda", "auto"])
def test_a_worker_without_a_gpu_next_to_one_with_it_is_refused(small_workflow, device):
    said = refusal([H100, replace(CPU, host="b")], small_workflow(), device)
    assert said.startswith(f"worker 1 on b has no GPU that CuPy sees, worker 0 H100, and device is {device}: give")


def test_two_workers_on_one_gpu_are_refused(small_workflow):
    said = refusal([H100, replace(H100, host="b"), H100], small_workflow(), "cuda")
    assert "workers 0 and 2 on a have the same GPU, 0000:01:00.0: start one for each (`dask cuda worker`" in said


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_two_workers_on_the_cpus_of_one_machine_are_accepted(small_workflow, device):
    check([CPU, CPU], small_workflow().model_copy(update={"device": device}))


def test_gpus_of_two_models_and_machines_are_accepted(small_workflow):
    other = replace(H100, device="A100", gpu="0000:02:00.0")
    check([H100, other, replace(H100, host="b")], small_workflow().model_copy(update={"device": "cuda"}))


def test_a_slab_on_a_gpu_never_counts_as_memory_of_the_host(small_workflow):
    workflow = small_workflow(storage={"device": "1 TiB"}).model_copy(update={"device": "cuda"})
    limited = replace(H100, memory_limit=1 << 30)
    check([limited], workflow)
    small = limited.memory_limit >> 4
    said = refusal([replace(limited, memory_limit=small)], workflow, "cuda")
    assert f"memory limit of {format_size_down(small)}, and storage's host, read and map add up to" in said


def test_a_worker_whose_disk_is_too_small_is_refused(small_workflow):
    """Two workers share a disk, and the third has another one."""
    machines = [CPU, CPU, replace(CPU, disk=8, free_bytes=600)]
    check(machines, small_workflow(), 500)
    said = refusal(machines, small_workflow(), "cpu", 501)
    assert said.startswith("worker 0 on a has 1000 B free on the disk of the run directory, and one whole commit")
    assert "of 2 workers there takes 1002 B; make room, or lower storage.device or storage.host" in said


def test_a_disk_must_have_room_for_one_whole_commit(small_workflow):
    """Rows of device and host: 90 in chunks of 4, of which each shard has one begun."""
    sizes = sizes_of(small_workflow(), device_rows=60, host_rows=30)
    chunk_bytes = min_disk_bytes(sizes, 1) // 23
    assert min_disk_bytes(sizes, 1) == 23 * chunk_bytes
    assert min_disk_bytes(sizes, 6) == (6 + 21) * chunk_bytes
    assert chunk_bytes >= 4 * (sizes.row_bytes + 8)


def test_the_caps_of_all_workers_of_a_machine_must_fit_into_it(small_workflow):
    """Of each 160 MiB in RAM, 144 with a GPU. Machine a has room for two on CPUs and a bit, b for one."""
    workflow, cpu = small_workflow(), replace(CPU, memory={0: 330 << 20})
    on_b = replace(CPU, host="b", memory={0: 160 << 20})
    check([cpu, cpu, on_b], workflow)
    said = refusal([on_b, cpu, cpu, cpu], workflow, "cpu")
    assert said.startswith("worker 1 on a: storage's device, host, read and map of 3 workers there add up to ")
    assert said.endswith(
        " 480 MiB, and its machine has 330 MiB; lower them to 110 MiB a worker, or start fewer workers there"
    )
    gpus = [replace(H100, gpu=str(n), memory={0: 300 << 20}) for n in range(3)]
    check(gpus[:2], workflow.model_copy(update={"device": "cuda"}))
    assert "host, read and map of 3 workers there add up to 432 MiB" in refusal(gpus, workflow, "cuda")


def test_a_control_group_limits_only_its_own_workers(small_workflow):
    """Groups 7 and 8, two containers of one machine that use its network, have a limit each; of 9 both are a part."""
    machine, workflow = {0: 1 << 30}, small_workflow()
    seven, eight = (replace(CPU, memory=machine | {group: 200 << 20, 9: 400 << 20}) for group in (7, 8))
    check([seven, eight, CPU, CPU], workflow)
    said = refusal([eight, seven, seven], workflow, "cpu")
    assert "worker 0 on a: storage's device, host, read and map of 3 workers there add up to 480 MiB" in said
    assert "and its control group may have 400 MiB; lower" in said
    said = refusal([CPU, seven, seven], workflow, "cpu")
    assert "worker 1 on a: storage's device, host, read and map of 2 workers there add up to 320 MiB" in said
    assert "and its control group may have 200 MiB; lower" in said


def test_other_packages_or_too_few_threads_are_refused(small_workflow):
    other = replace(CPU, host="b", versions={"torch": "3"})
    assert "worker 1 on b has torch 3, and worker 0 2" in refusal([CPU, other], small_workflow(), "cpu")
    assert "worker 1 on a has 2 threads" in refusal([CPU, replace(CPU, threads=2)], small_workflow(), "cpu")
