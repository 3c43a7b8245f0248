"""Where the device tier is: what a workflow asks for, what this machine has, and what is said if it is too little."""

import numpy as np
import pytest
from harness import make_driver

from pipeline import device
from pipeline.device import RAM, Ram, available_ram, choose
from pipeline.records import DONE
from pipeline.resources import PipelineError
from pipeline.run import check_memory
from pipeline.storage.sizes import DoesNotFit


def test_a_gpu_that_is_not_there_is_taken_or_not_missed(monkeypatch):
    monkeypatch.setattr(device, "_why_no_gpu", lambda: "CuPy sees no CUDA device")
    assert choose("auto") is RAM
    assert choose("cpu") is RAM
    with pytest.raises(ValueError, match="device is cuda, and there is none: CuPy sees no CUDA device; set device to"):
        choose("cuda")


def test_work_in_ram_waits_for_something_or_is_done_twice():
    stream, calls = RAM.train, []
    stream.run(calls.append, 1)
    assert calls == [1]
    event = stream.record()
    assert event is DONE
    event.wait()
    stream.after(event)
    array = RAM.empty((3, 2), np.float32)
    assert array.ctypes.data % 64 == 0
    stream.copy(array, array)
    other = RAM.empty(6, np.uint32)
    array[:] = 1
    stream.copy(array, other)
    assert other.view(np.float32).tolist() == [1] * 6
    assert RAM.drain() == []


def test_the_free_memory_of_this_machine_is_not_known():
    assert 1 << 28 < available_ram() < 1 << 50


class Small(Ram):
    """RAM of so many bytes, of which some allocation is one too many."""

    def __init__(self, num_bytes):
        super().__init__()
        self.left = num_bytes

    def empty(self, shape, dtype):
        array = super().empty(shape, dtype)
        if array.nbytes > self.left:
            raise MemoryError(f"{array.nbytes} bytes wanted")
        self.left -= array.nbytes
        return array

    def free_bytes(self):
        return self.left


def test_memory_that_is_too_small_ends_without_the_plan(small_workflow, tmp_path):
    with pytest.raises(DoesNotFit) as raised:
        make_driver(small_workflow(), tmp_path, device=Small(1000))
    for part in ("out of memory (", "bytes wanted)", "device slab", "rows of", "1,000 bytes are free", "lower storage"):
        assert part in str(raised.value)


def test_memory_that_ends_while_training_is_not_told_with_the_plan(small_workflow, tmp_path):
    driver = make_driver(small_workflow(), tmp_path, device=Small(1 << 30))
    driver.resources.device.left = 0
    with pytest.raises(PipelineError, match=r"train of block 0 failed: out of memory [\s\S]*device slab"):
        driver.run()


def test_a_share_is_taken_of_something_else_than_what_is_free(small_workflow):
    workflow = small_workflow(storage={"device": "50 %"})
    check_memory(workflow, RAM)
    on_gpu = type("Gpu", (Small,), {"on_gpu": True})(1 << 40)
    check_memory(workflow, on_gpu)
    with pytest.raises(ValueError, match=r"storage.device is 2,048 bytes, and 1,000 of the GPU's memory are free"):
        check_memory(small_workflow(storage={"device": "2 KiB"}), type("Gpu", (Small,), {"on_gpu": True})(1000))
