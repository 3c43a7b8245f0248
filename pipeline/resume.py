"""Whether a workflow may go on from a commit: what must be the same, what may differ, and what is said about it."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.agenda import Position
from pipeline.workflow import Workflow

HARMLESS = (
    "name", "data.root", "storage.device", "storage.host", "storage.disk", "storage.read", "storage.map",
    "storage.policy", "storage.log_multiple", "storage.log_growth", "storage.direct", "schedule.block_batches",
    "schedule.look_ahead", "schedule.epochs", "commit", "metrics", "workers", "device",
)  # fmt: skip
"""Change no bit of the result (more epochs: none of those before). Which device it is is told by the environment."""
TOLD = (
    "optimizer.dense", "optimizer.max_grad_norm", "optimizer.rows.lr", "optimizer.rows.l2", "optimizer.rows.clip",
    "schedule.plateau", "schedule.threads",
)  # fmt: skip
"""May change, with a warning: the result is not that of one workflow any more."""


def description(
    workflow: Workflow, num_examples: Mapping[str, int], device: str = "cpu", world: int = 1, steps_of_epoch: int = 0
) -> dict[str, Any]:
    """What a commit keeps of the run, to be compared when it goes on. JSON values. `device`: the model of it. `world`:
    the number of workers."""
    return {
        "workflow": json.loads(workflow.model_dump_json()),
        "num_examples": dict(num_examples),
        "steps_of_epoch": steps_of_epoch,
        "environment": environment() | {"device": device, "workers": str(world)},
    }


def environment() -> dict[str, str]:
    """What else can change bits: library versions and the processor model."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    processor = next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.machine())
    return {"processor": processor} | {name: version(name) for name in ("numba", "numpy", "torch")}


def check(before: Mapping[str, Any], now: Mapping[str, Any], position: Position) -> list[str]:
    """Warnings for what differs and may; ValueError with every difference that may not.

    Both are `description`s; `position` is the commit's.
    """
    differences = list(_differences(_with_defaults(before["workflow"]), now["workflow"], ""))
    # A weight of Ftrl is a function of its sums and of the settings that they were made with.
    fixed = ("optimizer.rows",) if now["workflow"]["optimizer"]["rows"]["kind"] == "ftrl" else ()
    refused = [text for path, text in differences if not _is_in(path, HARMLESS + TOLD) or _is_in(path, fixed)]
    refused += [text for _, text in _differences(before["num_examples"], now["num_examples"], "examples of ")]
    steps_were, steps = before.get("steps_of_epoch", now["steps_of_epoch"]), now["steps_of_epoch"]
    if steps != steps_were:
        # Rows and their rates are counted in steps of the run.
        refused.append(
            f"steps of an epoch: were {steps_were}, are {steps}, since with batch norm a last batch that is too small "
            "for all workers is joined to the one before"
        )
    was, epochs = (d["workflow"]["schedule"]["epochs"] for d in (before, now))
    # Between two epochs a run cannot end any more: what follows the last one, the test, would be left out.
    if position.epoch >= epochs and epochs != was:
        refused.append(f"schedule.epochs: was {was}, is {epochs}, and the commit goes on in epoch {position.epoch + 1}")
    if refused:
        raise ValueError(
            "the run directory holds a commit of another workflow:\n       "
            + "\n       ".join(refused)
            + "\n       change the workflow back, begin anew with --fresh, or name another place with --run-dir"
        )
    told = [text for path, text in differences if _is_in(path, TOLD)]
    # Before there was a choice it was the CPU, and one worker.
    environment = {"device": "cpu", "workers": "1"} | before["environment"]
    return told + [text for _, text in _differences(environment, now["environment"], "")]


def _with_defaults(workflow: Mapping[str, Any]) -> Any:
    """With the fields that came after the commit was taken, as they then were."""
    try:
        return json.loads(Workflow.model_validate_json(json.dumps(workflow)).model_dump_json())
    except ValueError:
        return workflow


def _is_in(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def _differences(before: Any, now: Any, path: str) -> Iterator[tuple[str, str]]:
    """Dotted path and text of each value that is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        separator = "." if path and not path.endswith(" ") else ""
        for name in dict.fromkeys([*before, *now]):
            yield from _differences(before.get(name), now.get(name), f"{path}{separator}{name}")
    elif before != now:
        yield path, f"{path}: was {_short(before)}, is {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else f"{text[:200]} ..."
