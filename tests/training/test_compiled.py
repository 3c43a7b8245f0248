"""The compiled dense part, with torch's compiler replaced: what runs compiled, what is left as it was, what messages
say. `proofs/test_compiled_bits.py` has the real compiler."""

from importlib.util import find_spec

import pytest
import torch
from conftest import make_workflow, write_data
from support.faults.killed_after_commit import changed, kill_after
from support.runs.harness import THREE_TIERS, make_driver, printed, run

from pipeline.data.source import Source
from pipeline.driver import resume
from pipeline.driver.driver import COMPILING
from pipeline.errors import PipelineError
from pipeline.machine import compiler
from pipeline.preflight import check_model
from pipeline.preflight.setup import check
from pipeline.training import compiled
from pipeline.workflow import Commit

DEEP = {"hidden": (5,), "batch_norm": True, "dropout": 0.3}


@pytest.fixture(scope="module")
def eager(tmp_path_factory):
    """Fifteen full batches of six, and a tail of two."""
    root = write_data(tmp_path_factory.mktemp("compiled"), num_train=92, num_keys=60)
    return make_workflow(root, args=DEEP).model_copy(update={"commit": Commit(every_blocks=3)})


@pytest.fixture
def workflow(eager, tmp_path):
    return changed(eager, model__compile=True, model__compile_cache=tmp_path / "cache")


@pytest.fixture
def replaced(monkeypatch):
    """Replace torch's compiler by one that leaves a function as it is; returns the batches that it ran for."""
    ran = []

    def compile_nothing(run, **options):
        assert options["dynamic"] is False

        def compiled_run(numbers, *others):
            ran.append((len(numbers), torch.is_inference_mode_enabled(), torch.get_num_threads()))
            return run(numbers, *others)

        return compiled_run

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return ran


def test_only_full_training_batches_run_compiled(workflow, eager, replaced):
    assert run(workflow, **THREE_TIERS)["fingerprint"] == run(eager, **THREE_TIERS)["fingerprint"]
    made_up, steps = 1, 2 * 15
    assert replaced == [(6, False, 1)] * (made_up + steps)


def test_a_run_without_a_full_batch_compiles_nothing(workflow, replaced):
    run(changed(workflow, schedule__batch_size=93))
    assert replaced == []


def test_a_run_that_was_trained_to_its_end_compiles_nothing(workflow, replaced, tmp_path):
    first = make_driver(workflow, tmp_path, **THREE_TIERS)
    assert first.run()
    assert COMPILING in printed(first)
    replaced.clear()
    again = make_driver(workflow, tmp_path, **THREE_TIERS)
    assert again.run()
    assert (replaced, COMPILING in printed(again)) == ([], False)


def test_a_commit_before_the_first_step_has_the_untouched_model(workflow, eager, replaced, tmp_path):
    dense = []
    for name, of in (("compiled", workflow), ("eager", eager)):
        (tmp_path / name).mkdir()
        driver = make_driver(of, tmp_path / name, **THREE_TIERS)
        worker = driver.crew.worker
        worker.start(list(driver.agenda.blocks(2))[:1], 1)
        worker.drain()
        dense.append({key: value.tobytes() for key, value in worker.dense().items()})
        driver.crew.close()
    assert dense[0] == dense[1]


def test_a_model_that_cannot_be_compiled_ends_the_run_at_once(workflow, monkeypatch, tmp_path):
    def cannot(run, **options):
        raise NotImplementedError("cannot trace this")

    monkeypatch.setattr(torch, "compile", cannot)
    driver = make_driver(workflow, tmp_path, **THREE_TIERS)
    with pytest.raises(
        PipelineError, match=r"failed: torch cannot compile the dense model DeepFM: cannot trace this; .* false"
    ):
        driver.run()
    assert driver.committer.newest is None


def test_a_missing_compiler_is_said_before_the_run(workflow, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"there is no no-such-compiler; install g\+\+ .* set model.compile to false"):
        check(workflow, make_device(on_gpu=False), print)


def test_a_compiler_that_fails_or_hangs_is_said_before_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ValueError, match="false fails: it ends with 1"):
        check_model.check_compiler(on_gpu=False)
    monkeypatch.setenv("CXX", str(tmp_path))
    with pytest.raises(ValueError, match="cannot be run: Permission denied; install"):
        check_model.check_compiler(on_gpu=False)
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nsleep 9\n")
    slow.chmod(0o700)
    monkeypatch.setattr(compiler, "TRY_SECONDS", 0.01)
    monkeypatch.setenv("CXX", str(slow))
    with pytest.raises(ValueError, match=r"slow does not end within 0.01 s; install"):
        check_model.check_compiler(on_gpu=False)


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton is installed")
def test_missing_triton_is_said_before_a_run_on_a_gpu(monkeypatch):
    monkeypatch.setattr(check_model, "try_compiler", lambda command: "")
    check_model.check_compiler(on_gpu=False)
    with pytest.raises(ValueError, match="needs triton on a GPU"):
        check_model.check_compiler(on_gpu=True)


def test_what_changes_compiled_bits_warns_at_a_resume(workflow, replaced, monkeypatch, tmp_path):
    kill_after(2, workflow, tmp_path, monkeypatch)
    assert make_driver(changed(workflow, model__compile_cache=None), tmp_path, **THREE_TIERS).warnings == []
    (threads,) = make_driver(changed(workflow, schedule__threads=2), tmp_path, **THREE_TIERS).warnings
    assert threads.endswith("schedule.threads: was 1, is 2")
    warnings = make_driver(changed(workflow, model__compile=False), tmp_path, **THREE_TIERS).warnings
    assert "model.compile: was true, is false" in warnings[0]
    monkeypatch.setattr(resume, "compiler_version", lambda command: "g++ 99")
    monkeypatch.setenv("TORCHINDUCTOR_FREEZING", "1")
    one, other = make_driver(workflow, tmp_path, **THREE_TIERS).warnings
    assert one.endswith('is "g++ 99"')
    assert other.endswith('TORCHINDUCTOR_FREEZING: was null, is "1"')


def test_the_compiler_is_no_part_of_an_eager_run(eager):
    assert "compiler" not in resume.description(eager, Source(eager.data, 0).identity)["environment"]


def test_each_compiler_has_compiled_code_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(compiled, "compiler_version", lambda command: command)
    monkeypatch.setenv("CXX", "one")
    one = compiled.cache_folder(tmp_path)
    assert one.parent == tmp_path
    monkeypatch.setenv("CXX", "other")
    assert compiled.cache_folder(tmp_path) != one
    monkeypatch.setenv(compiler.CACHE, str(compiled.cache_folder(tmp_path)))
    assert compiled.cache_folder(None) == compiled.cache_folder(tmp_path), "the folder is not nested again"


def make_device(on_gpu):
    class Device:
        def __init__(self):
            self.on_gpu = on_gpu

        def free_bytes(self):
            return 1 << 40

    return Device()
