"""The dense part of a step: forward pass, loss, and backward pass down to the embeddings, eagerly or as one torch
graph.

The graph is for a full training batch and a fixed number of threads; all other batches run eagerly. It is compiled in a
separate thread, with made-up inputs, while the first blocks are read.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from pipeline.device.device import Device, make_deterministic, torch_device
from pipeline.errors import PipelineError
from pipeline.machine.compiler import CACHE, compiler, compiler_version, processor
from pipeline.machine.stopwatch import part
from pipeline.optim.dense import Dense
from pipeline.optim.kstep import KStepDense
from pipeline.records import Array
from pipeline.training.build import own_model
from pipeline.training.dense_state import dense_state, load_dense, model_state, save_dense
from pipeline.training.embed import Embed
from pipeline.training.forward import Forward, Pass
from pipeline.workflow import Workflow


class TorchDevice:
    """Runs torch work on the device. On a GPU, `run` enqueues the work on the device's stream `train` and does not
    wait."""

    def __init__(self, device: Device) -> None:
        self._device, self.where = device, torch_device(device)
        self._stream: torch.cuda.Stream | None = None
        self.generator = torch.random.default_generator
        if self.where.type == "cuda":
            make_deterministic()
            self._stream = torch.cuda.ExternalStream(device.train.pointer)
            self.generator = torch.cuda.default_generators[torch.cuda.current_device()]

    def run(self, work: Callable[..., object], *args: object) -> None:
        self._device.train.run(self._with_torch, work, *args)

    def _with_torch(self, work: Callable[..., object], *args: object) -> None:
        with self.stream():
            work(*args)

    def stream(self) -> AbstractContextManager[object]:
        """Context in which the stream is torch's current stream. Without it, allocations would not be ordered with the
        steps."""
        return torch.cuda.stream(self._stream) if self._stream else nullcontext()

    def zeros(self, *shape: int) -> Tensor:
        with self.stream():
            return torch.zeros(shape, device=self.where)

    def to_host(self, results: list[Tensor]) -> list[Tensor]:
        """Start copies to the host. They are complete when all work enqueued so far is done."""
        on_host = [torch.empty(result.shape, pin_memory=self._stream is not None) for result in results]
        for result, here in zip(results, on_host, strict=True):
            self.run(here.copy_, result, True)
        return on_host


class DensePart:
    """A model and its optimizer. If its weights are averaged, the parameters hold the averages while blocks are
    scored, and the plain weights for everything else."""

    def __init__(self, model: torch.nn.Module, dense: Dense | KStepDense, device: TorchDevice) -> None:
        self._model, self._dense, self._device = model, dense, device

    def show(self, averaged: bool) -> None:
        """Make the parameters hold the averages, if there are any, or the plain weights."""
        if self._dense.average:
            self._dense.average.show(averaged)

    def save(self) -> dict[str, Array]:
        """Return everything that a commit stores, in the form that `load` reads."""
        with self._device.stream():
            self.show(averaged=False)
            return save_dense(self._model, self._dense.optimizer, self._dense.average)

    def load(self, saved: Mapping[str, Array]) -> None:
        """Load what `save` returned. Raises ValueError if it belongs to another model."""
        with self._device.stream():
            load_dense(self._model, self._dense.optimizer, saved, self._dense.average)

    def state(self) -> list[tuple[str, Array]]:
        """Names and values of everything learned, for a fingerprint."""
        with self._device.stream():
            self.show(averaged=False)
            return dense_state(self._model, self._dense.optimizer, self._dense.average)

    def scoring_state(self) -> dict[str, Array]:
        """Parameters and buffers used to score blocks, by name."""
        with self._device.stream():
            self.show(averaged=True)
            return model_state(self._model)


OF_TORCH = r"`torch\.jit\.script_method` is deprecated|The \.grad attribute of a Tensor that is not a leaf"
"""Beginnings of warnings that torch's compiler raises about torch's code: on import, and when a model leaves torch in
the middle of its forward pass."""
MAX_REASON = 300
"""Maximum number of characters of torch's reason in a message."""

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def made_up_inputs(forward: Forward, embed: Embed, full: int) -> Inputs:
    """All-zero inputs for a `Pass`, with the layout of a full batch of `full` examples."""
    numbers, labels, weights = forward.columns_of_full_batch()
    embeddings, first = embed.zeros(full)
    return numbers, embeddings.requires_grad_(), first.requires_grad_(), labels, weights


class Compiled:
    """A compiled `Pass`. The same code gives the same bits, even from a cache; other compilers, processors or numbers
    of threads generate different code. Only `train` and the compiling thread use it."""

    def __init__(
        self, run: Pass, inputs: Callable[[], Inputs], model: torch.nn.Module, device: TorchDevice, workflow: Workflow
    ) -> None:
        self._run, self._inputs, self._model, self._device = run, inputs, model, device
        self._threads, self._cache = workflow.schedule.threads, workflow.model.compile_cache
        self._pass: Pass | None = None
        self._failure: BaseException | None = None
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Start compiling, unless already started. Nothing else may use the model until `settle`."""
        if self._thread is None:
            self._thread = Thread(target=self._try_to_compile, name="compile", daemon=True)
            self._thread.start()

    def settle(self) -> None:
        """Wait until the pass is compiled."""
        if self._thread:
            self._thread.join()

    def check(self) -> None:
        """Wait for compilation to finish, if it has started. Raises PipelineError if it failed."""
        with part("compile"):
            self.settle()
        if self._failure:
            raise PipelineError(self._text(self._failure)) from self._failure

    def __call__(
        self, numbers: Tensor, embeddings: Tensor, first: Tensor, labels: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the pass. Raises PipelineError if torch could not compile it or would recompile it too often."""
        self.begin()
        self.check()
        assert self._pass, "it was neither compiled nor refused"
        try:
            # Beyond its limit torch would continue eagerly, with bits that depend on earlier compilations.
            with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
                return self._pass(numbers, embeddings, first, labels, weights)
        except (torch._dynamo.exc.TorchDynamoException, torch._dynamo.exc.FailOnRecompileLimitHit) as error:
            raise PipelineError(self._text(error)) from error

    def _try_to_compile(self) -> None:
        try:
            with self._device.stream():
                self._compile()
        except Exception as error:
            self._failure = error

    def _compile(self) -> None:
        # Compiled code depends on torch's number of threads, which is set per Python thread.
        torch.set_num_threads(self._threads)
        os.environ[CACHE] = str(cache_folder(self._cache))
        warnings.filterwarnings("ignore", OF_TORCH)
        compile_: Any = torch.compile
        compiled = compile_(self._run, dynamic=False, options=options(self._device), **isolated())
        devices = [self._device.where] if self._device.where.type == "cuda" else []
        with untouched(self._model), torch.random.fork_rng(devices=devices):
            self._model.train()
            inputs = self._inputs()
            # Compile both forward and backward now. Gradients are returned, not added to those of the parameters.
            _, loss = compiled(*inputs)
            wanted = [tensor for tensor in (*inputs, *self._model.parameters()) if tensor is not None]
            torch.autograd.grad(loss, [tensor for tensor in wanted if tensor.requires_grad], allow_unused=True)
        self._pass = compiled

    def _text(self, error: BaseException) -> str:
        name = type(own_model(self._model)).__name__
        if isinstance(error, torch._dynamo.exc.FailOnRecompileLimitHit):
            return (
                f"the dense model {name} changes as it trains, and torch would have to compile it at every step: keep "
                "what changes in buffers, or set model.compile to false"
            )
        # The rest of the message is advice for debugging torch.
        message, _, _ = str(error).partition("Set TORCHDYNAMO_VERBOSE")
        reason = " ".join(message.split())[:MAX_REASON] or type(error).__name__
        return f"torch cannot compile the dense model {name}: {reason}; change it, or set model.compile to false"


def options(device: TorchDevice) -> dict[str, Any]:
    """Options of torch's compiler. On a GPU it must not choose, by measured time, between kernels with different orders
    of addition. On both devices, random numbers come from the generator that each step seeds."""
    return {"deterministic": True} if device.where.type == "cuda" else {}


def isolated() -> dict[str, bool]:
    """Argument of torch.compile, in versions that have it, that counts each learner's compilations separately.
    Otherwise a process that trains one model after another would reach torch's limit."""
    return {name: True for name in inspect.signature(torch.compile).parameters if name == "isolate_recompiles"}


def cache_folder(chosen: Path | None) -> Path:
    """Folder for compiled code: a subfolder of the chosen folder (default: torch's) for each compiler and processor.
    torch checks neither when it finds code in a folder."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    own = hashlib.blake2b(f"{compiler_version(compiler())} {processor()}".encode(), digest_size=6).hexdigest()
    folder = (chosen or Path(os.environ.get(CACHE) or default_cache_dir())).expanduser().absolute()
    return folder if folder.name == own else folder / own


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Context that restores the model's buffers and mode at its end."""
    before = [(module, name, held, held.clone()) for module, name, held in _buffers(model)]
    training = model.training
    try:
        yield
    finally:
        for module, name, held, value in before:
            held.copy_(value)
            module._buffers[name] = held
        model.train(training)


def _buffers(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, Tensor]]:
    for module in model.modules():
        yield from ((module, name, held) for name, held in module._buffers.items() if held is not None)
