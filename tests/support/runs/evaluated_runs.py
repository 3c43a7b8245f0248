"""Trained runs with the logits of their own evaluation of the test split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.runs.harness import THREE_TIERS, make_driver

from pipeline.metrics.evaluation import Evaluation
from pipeline.workflow import Workflow


@dataclass(frozen=True)
class EvaluatedRun:
    workflow: Workflow
    run_dir: Path
    result: dict[str, Any]
    logits_NT: np.ndarray
    """Logits of the test split from the run's last evaluation."""

    @property
    def test(self) -> pa.Table:
        return pa.concat_tables(
            [pq.read_table(path) for path in sorted(Path(self.workflow.data.root).glob(self.workflow.data.test[0]))]
        )


def train_and_evaluate(workflow: Workflow, run_dir: Path) -> EvaluatedRun:
    """Train through three tiers, and record the logits of each evaluation."""
    splits: list[list[np.ndarray]] = [[]]
    with pytest.MonkeyPatch.context() as patch:
        add, result = Evaluation.add, Evaluation.result

        def recording(self: Evaluation, scores_BT: np.ndarray, *truth: Any) -> None:
            splits[-1].append(scores_BT.copy())
            add(self, scores_BT, *truth)

        def closing(self: Evaluation) -> dict[str, float]:
            splits.append([])
            return result(self)

        patch.setattr(Evaluation, "add", recording)
        patch.setattr(Evaluation, "result", closing)
        found = make_driver(workflow, run_dir, **THREE_TIERS).run()
    assert found
    return EvaluatedRun(workflow, run_dir, found, np.concatenate(splits[-2]))


def bits_of(table: pa.Table, labels: tuple[str, ...] = ("click",)) -> np.ndarray:
    """[N, T] bits of the logits."""
    return np.stack([table.column(f"{label}.logit").to_numpy().view(np.uint32) for label in labels], axis=1)
