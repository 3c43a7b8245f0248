"""Opening of a study: the requirements on its workflow, a trial's share of the caps, and whether an earlier study
resumes."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pipeline.data.side_files import side_digests
from pipeline.data.source import Source
from pipeline.machine import limits
from pipeline.machine.aside import WAYS_OUT
from pipeline.messages.sizes import MemoryShare
from pipeline.monitor.runs import flat_settings
from pipeline.own_code.code import code_digest
from pipeline.preflight.chosen_caps import SHARE_OF_FREE, free_disk
from pipeline.settings import read_json
from pipeline.storage.files import Files
from pipeline.tune.records import metric_of
from pipeline.tune.space import Space
from pipeline.tune.study import Fixed, Study
from pipeline.workflow import Workflow, without_removed

MAY_CHANGE = ("storage", "commit", "device")
"""Parts of the workflow that do not affect the bits of a trial."""


def open_study(out: Path, workflow: Workflow, space: Space, args: Namespace) -> Study:
    """Open the study in a folder, or start one. `args`: arguments of the command. Raises ValueError if the folder
    contains a different study, or if the workflow cannot be tuned."""
    parallel, workers = args.parallel, args.workers
    if not workflow.data.validation:
        raise ValueError("trials are judged by the validation split, and data.validation names no files; name some")
    path = out / "study.json"
    if not path.is_file() and out.is_dir() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty and holds no study; {WAYS_OUT}")
    examples, content = content_of(workflow)
    fixed = Fixed(
        workflow=described(workflow), space=json.loads(json.dumps(dict(space), default=lambda of: of.model_dump())),
        metric=metric_of(workflow), seed=args.seed, parallel=parallel, workers=workers, examples=examples,
        content=content, memory=int(SHARE_OF_FREE * limits.free_memory() / (workers or 1)),
        threads=max(1, workflow.schedule.threads // parallel),
    )  # fmt: skip
    if path.is_file():
        fixed = goes_on(out, read_json(Fixed, path.read_bytes()), fixed)
    else:
        Files().make_folder(out)
        Files().replace(path, [fixed.model_dump_json(indent=1).encode()])
    return Study(out, fixed, workflow, space, shares_of(workflow, fixed, out, args.keep_tables), args)


def described(workflow: Workflow) -> dict[str, Any]:
    """The workflow in JSON, without the settings that may change when a study resumes."""
    fields = json.loads(workflow.model_dump_json(exclude={*MAY_CHANGE}))
    del fields["schedule"]["threads"]
    return dict(fields)


def content_of(workflow: Workflow) -> tuple[int, dict[str, str]]:
    """Number of training examples, and checksums of what trials read in addition to their settings."""
    content = {"model.kind": code_digest(workflow.model.kind), **side_digests(workflow.data)}
    if workflow.data.synthetic:
        return workflow.data.synthetic.train_examples, content
    with closing(Source(workflow.data, workflow.seed)) as source:
        content |= {f"data.{split}": identity.digest for split, identity in source.identity.items()}
        return source.num_examples["train"], content


def goes_on(out: Path, before: Fixed, now: Fixed) -> Fixed:
    """Return the settings with which an earlier session started. Raises ValueError, with all differences, if it was a
    different study."""
    machine = ("memory", "threads") if before.content else ("memory", "threads", "content")
    before = before.model_copy(update={"workflow": without_removed(before.workflow)})
    was, found = (dict(flat_settings(of.model_dump(mode="json", exclude={*machine}))) for of in (before, now))
    changed = [name for name in was | found if was.get(name) != found.get(name)]
    if changed:
        lines = [f"{name.removeprefix('workflow.')} was {was.get(name)}, is {found.get(name)}" for name in changed]
        raise ValueError(
            "\n       ".join([f"{out} holds another study:", *lines[:8], f"change it back; or {WAYS_OUT}"])
        )
    return before


def shares_of(workflow: Workflow, fixed: Fixed, out: Path, keep: int) -> Mapping[str, Any]:
    """Settings of a trial: its share of RAM, disk and threads. The disk cap is shared by the running trials and those
    that keep their tables."""
    caps, parallel = workflow.storage, fixed.parallel
    disk = caps.disk or free_disk(out) // (fixed.workers or 1)
    shares: dict[str, Any] = {"schedule.threads": fixed.threads, "storage.disk": disk // (parallel + keep)}
    given = {name: getattr(caps, name) for name in ("device", "host", "read", "map")}
    shares |= {f"storage.{name}": size // parallel for name, size in given.items() if isinstance(size, int)}
    if isinstance(caps.device, MemoryShare):
        shares["storage.device"] = str(MemoryShare(caps.device.of_free / parallel))
    if caps.device is None or caps.host is None:
        shares["storage.memory"] = (caps.memory or fixed.memory) // parallel
    return shares
