"""Vowpal Wabbit and River under the protocol of `benchmarks.nightly`: each span is scored before it is learned from.

    PYTHON -m benchmarks.nightly.online_learners LEARNER SETTINGS EXAMPLES SCORES

Needs only the library: PYTHON may belong to another environment. LEARNER: vw or river. SETTINGS: JSON, the arguments of
Vowpal Wabbit, or {"model": ..., ...} for River. EXAMPLES: a file with one JSON list per example, in time order: span,
label (0 or 1), {field: [values]}. SCORES: file to write, with one probability per line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

Fields = dict[str, list[str]]


class VowpalWabbit:
    """Features are values in a namespace per field, whose first letter names it in interactions. Each value of a list
    of n values has weight 1/n."""

    def __init__(self, settings: str) -> None:
        from vowpalwabbit import Workspace

        self._vw = Workspace(f"--quiet --loss_function logistic --link logistic -b 20 {settings}")

    def _text(self, fields: Fields) -> str:
        return " ".join(
            f"|{name} {' '.join(f'{name}_{value}:{1 / len(of)}' for value in of)}" for name, of in fields.items()
        )

    def score(self, fields: Fields) -> float:
        return float(self._vw.predict(self._text(fields)))

    def learn(self, fields: Fields, label: int) -> None:
        self._vw.learn(f"{2 * label - 1} {self._text(fields)}")


class River:
    """Features are values with weight 1; each value of a list of n values has weight 1/n."""

    def __init__(self, settings: dict[str, Any]) -> None:
        from river import facto, linear_model, optim

        of = {"ftrl": optim.FTRLProximal, "adagrad": optim.AdaGrad, "adam": optim.Adam, "sgd": optim.SGD}
        optimizer = of[settings["optimizer"]](settings["lr"])
        self._model: Any = (
            linear_model.LogisticRegression(optimizer, l2=settings.get("l2", 0.0), clip_gradient=1e6)
            if settings["model"] == "lr"
            else facto.FMClassifier(
                n_factors=settings["factors"], weight_optimizer=optimizer,
                latent_optimizer=of[settings["optimizer"]](settings["lr"]), seed=1,
            )
        )  # fmt: skip

    def _features(self, fields: Fields) -> dict[str, float]:
        return {f"{name}_{value}": 1.0 / len(values) for name, values in fields.items() for value in values}

    def score(self, fields: Fields) -> float:
        return float(self._model.predict_proba_one(self._features(fields)).get(True, 0.5))

    def learn(self, fields: Fields, label: int) -> None:
        self._model.learn_one(self._features(fields), bool(label))


def scores_of(learner: VowpalWabbit | River, lines: Iterator[list[Any]]) -> Iterator[float]:
    """Yield the score of each example from the learner's state at the end of the previous span; learn in one pass."""
    for _, of_span in groupby(lines, key=lambda line: line[0]):
        examples = list(of_span)
        yield from (learner.score(fields) for _, _, fields in examples)
        for _, label, fields in examples:
            learner.learn(fields, label)


def main(argv: list[str]) -> None:
    name, settings, examples, scores = argv
    learner = (VowpalWabbit if name == "vw" else River)(json.loads(settings))
    with open(examples) as lines:
        found = scores_of(learner, map(json.loads, lines))
        Path(scores).write_text("".join(f"{score!r}\n" for score in found))


if __name__ == "__main__":
    main(sys.argv[1:])
