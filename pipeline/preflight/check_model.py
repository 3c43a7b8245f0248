"""Checks, before the run, that the workflow's model works on two made-up examples, and that this machine has enough
memory for the caps, and a compiler if one is needed."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch

from pipeline.device.device import Described
from pipeline.errors import did_you_mean
from pipeline.machine import limits
from pipeline.machine.compiler import compiler, try_compiler
from pipeline.messages.sizes import format_size_down, format_size_up
from pipeline.metrics.evaluation import GROUP_BYTES, evaluation_bytes
from pipeline.models.losses import logits_of, loss_of
from pipeline.settings.caps import Storage
from pipeline.settings.changes import arguments_of
from pipeline.settings.problems import defined_at, place_of
from pipeline.storage.layout import RowLayout
from pipeline.training.build import build_model, has_batch_norm, own_model
from pipeline.training.dense_state import dense_bytes
from pipeline.training.forward import made_up
from pipeline.workflow import Workflow

NUM_EXAMPLES = 2
NUM_DRAWN, SCALES = 32, (0.5, 1.0, 2.0)
"""Number of examples drawn to find the range of the outputs, and scales of the drawn weights and inputs."""

OR_NOT = "or set model.compile to false"


@dataclass(frozen=True, slots=True)
class DenseFacts:
    """Properties of a dense model that can be determined without training."""

    num_bytes: int
    """Bytes of a commit of the dense part: parameters, buffers, and optimizer state."""
    batch_norm: bool
    activation_bytes: float = 0.0
    """Bytes per example that the forward pass saves for the backward pass."""

    def min_last_batch(self, batch_size: int, world: int) -> int:
        """Minimum size of an epoch's last batch; a smaller one is merged into the previous batch. Batch norm needs two
        examples per worker. Raises ValueError if batch_size itself is too small for that."""
        if not self.batch_norm:
            return 1
        if batch_size < 2 * world:
            raise ValueError(
                f"schedule.batch_size is {batch_size}, and batch norm needs two examples of each of {world} workers; "
                "raise it, or take fewer workers"
            )
        return 2 * world


def fast_in_bfloat16() -> bool:
    """True if this machine's processor has instructions for bfloat16 products (AVX-512 or AMX on x86, BF16 on Arm).
    Without them, torch takes about thirty times as long for such products as in float32 (measured with AVX2)."""
    fast: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return fast


def check_model(workflow: Workflow, row: RowLayout, say: Callable[[str], None] = print) -> DenseFacts:
    """Build the workflow's model and try it. `row`: layout of its rows; `say` is called with warnings. Raises
    ValueError, naming the fault in model.kind or model.args, if building the model or a forward pass fails; any
    exception of the user's class counts as a failure."""
    kind = getattr(workflow.model.kind, "__name__", workflow.model.kind)
    known = arguments_of(workflow.model.kind)
    for name in workflow.model.args:
        if known is not None and name not in known:
            close, hint = did_you_mean(name, known)
            kept = json.dumps({n: value for n, value in workflow.model.args.items() if n in known}, default=repr)
            without = "" if close else f"; to leave it out: --set 'model.args={kept}'"
            raise ValueError(
                f"model.args: {kind} has no {name!r}{hint if close else '.'} It takes "
                f"{', '.join(known) or 'none'}{without}"
            )
    try:
        model = build_model(workflow)
    except Exception as error:
        raise ValueError(f"model.kind {kind} cannot be made with model.args: {error}{place_of(error)}") from error
    _check_sequences(workflow, kind, model)
    try:
        with torch.random.fork_rng(devices=[]):
            num_bytes = _try(workflow, row, model)
            bounded = _gives_probabilities(workflow, row, model)
    except Exception as error:
        raise ValueError(f"model.kind {kind} fails on {NUM_EXAMPLES} examples: {error}{place_of(error)}") from error
    numbers = [task for task in workflow.data.all_tasks if not task.is_binary]
    if numbers and hasattr(model, "loss"):
        raise ValueError(
            f"model.kind {kind} has a loss, which takes the place of the loss {numbers[0].loss!r} of "
            f"{numbers[0].label!r} in data.tasks; take a model without one, such as DNN, MMoE or PLE"
        )
    if bounded and not numbers:
        say(
            f"warning: model.kind {kind}: forward returns only values from 0 to 1, whatever its weights and inputs "
            f"are; return logits, without a sigmoid{defined_at(own_model(model).forward)}"
        )
    return replace(facts_of(workflow, model), activation_bytes=num_bytes / NUM_EXAMPLES)


def _check_sequences(workflow: Workflow, kind: str, model: torch.nn.Module) -> None:
    """Raises ValueError if the workflow has sequences that the model does not take, or the model needs sequences that
    the workflow lacks."""
    parameters = inspect.signature(model.forward).parameters
    takes = "sequences" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if workflow.data.sequences and not takes:
        raise ValueError(
            f"model.kind {kind} takes no sequences: its forward{defined_at(model.forward)} has no such argument; leave "
            "out data.sequences, or take a model that reads them"
        )
    if not workflow.data.sequences and (one := parameters.get("sequences")) and one.default is one.empty:
        raise ValueError(f"model.kind {kind} reads sequences, and there are none: set data.sequences")


def _inputs(
    workflow: Workflow, row: RowLayout, make: Callable[..., torch.Tensor], num_examples: int, with_gradients: bool
) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    """Made-up arguments of a forward pass. Every second example has empty sequences; the others have sequences of
    maximum length."""
    fields = len(workflow.data.categories)
    inputs = (
        make(num_examples, len(workflow.data.numbers)),
        make(num_examples, fields, row.embedding_dim).requires_grad_(with_gradients),
        make(num_examples, fields if row.first_order else 0).requires_grad_(with_gradients),
    )
    if not workflow.data.sequences:
        return inputs, {}
    return inputs, {"sequences": made_up(workflow.data, num_examples, inputs[1])}


def _gives_probabilities(workflow: Workflow, row: RowLayout, model: torch.nn.Module) -> bool:
    """True if all outputs for large random weights and inputs are in [0, 1] and not all equal. Logits, by contrast,
    change sign when the weights do."""
    torch.manual_seed(0)
    outputs = []
    # A user's model may not allow copying, or drawing its weights; then the test says nothing.
    with suppress(Exception), torch.no_grad():
        drawn = copy.deepcopy(model).eval()
        drawn._forward_hooks.clear()  # The initial bias would move probabilities out of [0, 1].
        for scale in SCALES:
            for parameter in drawn.parameters():
                parameter.normal_(0.0, scale)
            inputs, sequences = _inputs(workflow, row, torch.randn, NUM_DRAWN, with_gradients=False)
            outputs.append(drawn(*(drawn_input * scale for drawn_input in inputs), **sequences))
        drawn_values = torch.cat([output.flatten() for output in outputs])
        low, high = torch.aminmax(drawn_values)
        return bool(0.0 <= low < high <= 1.0)
    return False


def facts_of(workflow: Workflow, model: torch.nn.Module) -> DenseFacts:
    return DenseFacts(dense_bytes(model, workflow.optimizer.numbers_a_parameter), has_batch_norm(model))


def _try(workflow: Workflow, row: RowLayout, model: torch.nn.Module) -> int:
    """Run the model and its loss. Returns the bytes that the forward pass saves, excluding parameters."""
    labels = workflow.data.labels
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        inputs, sequences = _inputs(workflow, row, torch.zeros, NUM_EXAMPLES, with_gradients=True)
        output = model(*inputs, **sequences)
    wanted = (NUM_EXAMPLES,) if len(labels) == 1 else (NUM_EXAMPLES, len(labels))
    logits = logits_of(output)
    if tuple(logits.shape) != wanted:
        of_labels = ""
        if len(labels) > 1:
            of_labels = (
                f" of data.labels ({', '.join(labels)}). Take model.kind SharedBottom, MMoE, PLE or AITM with "
                f"num_labels {len(labels)} in model.args, name a single label, or see docs/models.md, Several labels"
            )
        raise ValueError(
            f"forward returns an output of shape {tuple(logits.shape)}, expected {wanted}: one logit per "
            f"label{of_labels}"
        )
    targets = torch.zeros(NUM_EXAMPLES, len(labels))
    weights = torch.ones_like(targets) if workflow.data.tasks else None
    loss = getattr(model, "loss", loss_of(workflow.data.all_tasks))(output, targets, weights)
    if list(loss.shape) != ([len(labels)] if workflow.data.tasks else []):
        expected = f"({len(labels)},): one of each label of data.tasks" if workflow.data.tasks else "a single number"
        raise ValueError(f"loss gives shape {tuple(loss.shape)}, expected {expected}: return its mean")
    for parameter in model.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    return sum(kept.values())


def check_memory(storage: Storage, device: Described, workers: int = 1) -> None:
    """Raises ValueError if the caps exceed this machine's memory or a worker's GPU memory. `storage`: caps per worker,
    the device's in bytes; omitted caps do not count; `workers`: number of workers on this machine."""
    in_ram, there_is = _given_caps(storage), limits.memory()
    if device.on_gpu and (wanted := in_ram.pop("device")) > (free := device.free_bytes()):
        raise ValueError(
            f"storage.device is {format_size_down(wanted)}, and {format_size_down(free)} of the GPU's memory are free; "
            f'lower it to "{format_size_down(free * 4 // 5)}" or less, so that the model has room'
        )
    if (wanted := workers * sum(in_ram.values())) > there_is:
        *names, last = in_ram
        of_all = f" of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.{', '.join(names)} and {last}{of_all} add up to {format_size_up(wanted)}, and this machine has "
            f"{format_size_down(there_is)} within the limits of its control groups; lower one of them"
        )


def _given_caps(storage: Storage) -> dict[str, int]:
    """Caps of memory by name; omitted ones are 0."""
    caps = {name: getattr(storage, name) or 0 for name in ("device", "host", "read", "map")}
    return caps | ({"known": storage.known} if storage.foresees else {})


def check_groups(workflow: Workflow, num_examples: int, storage: Storage, device: Described, workers: int = 1) -> None:
    """Raises ValueError if metrics within groups do not fit into memory next to the caps. `num_examples`: the most
    that are evaluated together; other arguments as for `check_memory`."""
    # Several workers send their parts to the driver, which holds all.
    needed = evaluation_bytes(workflow, num_examples) * (2 if workers > 1 else 1)
    there_is, of = limits.memory(), "this machine"
    if storage.memory is not None and workers == 1:
        there_is, of = storage.memory, "storage.memory"
    of_worker = sum(size for name, size in _given_caps(storage).items() if name != "device" or not device.on_gpu)
    left = there_is - workers * of_worker
    if workflow.metrics.group and needed > left:
        files = "data.train, data.validation" if workflow.metrics.progressive else "data.validation"
        raise ValueError(
            f"metrics.group keeps {GROUP_BYTES} bytes per label of every example of the largest evaluation: "
            f"{num_examples:,} examples need {format_size_up(needed)} of RAM, and {of} has "
            f"{format_size_down(max(0, left))} next to the caps; leave metrics.group out, name fewer files in {files} "
            "and data.test, or lower the caps"
        )


def check_budget(memory: int | None, workers: int) -> None:
    """Raises ValueError if this machine has less memory than its workers may use, `memory` bytes each."""
    there_is = limits.memory()
    if memory is not None and workers * memory > there_is:
        of_all = f" for each of {workers} workers" if workers > 1 else ""
        raise ValueError(
            f"storage.memory is {format_size_up(memory)}{of_all}, and this machine has {format_size_down(there_is)}, "
            "limits of control groups counted; lower it, or leave it out for a share of what is free"
        )


def check_compiler(on_gpu: bool) -> None:
    """Raises ValueError if the compiler is missing or does not work. The compiler is needed even if an earlier run has
    cached compiled code, since torch always compiles a small program."""
    if wrong := try_compiler(compiler()):
        raise ValueError(
            f"model.compile needs a C++ compiler with OpenMP and the headers of Python, and {wrong}; install g++ and "
            f"python3-dev, name a compiler with CXX=, {OR_NOT}"
        )
    if on_gpu and find_spec("triton") is None:
        raise ValueError(f"model.compile needs triton on a GPU, which is not installed: pip install triton, {OR_NOT}")
