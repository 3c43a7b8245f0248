"""Synthetic Parquet data, generated once: train/, validation/ and test/ below `data.root`, and synthetic.json last.

Part p of a split is a pure function of the parameters, the split and p, so the data does not depend on the number of
threads. Its planted model has Zipf keys, and a label that depends on them; nothing is stored per key.
"""

from __future__ import annotations

import fcntl
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.machine.limits import cpus
from pipeline.records import F32, F64, I64
from pipeline.settings import SPLITS
from pipeline.storage.durable import replacing
from pipeline.storage.files import Files, refuse_links
from pipeline.workflow import Data, Synthetic

GROUP_EXAMPLES = 1 << 16
PART_EXAMPLES = 8 * GROUP_EXAMPLES
AUC_BINS = 1 << 16
DONE, BEGUN, LOCK = "synthetic.json", "synthetic.begun.json", ".synthetic.lock"
FILES = Files()
POSITIVE_RATE = 0.25
NUM_PAIRS = 4
"""Maximum number of pairs of neighbouring fields that interact."""
MAIN_VARIANCE, PAIR_VARIANCE, NUMBER_VARIANCE = 1.5, 0.5, 0.5
"""Variances of the logit, divided among the fields, the pairs and the numbers."""
CALIBRATION_EXAMPLES = 1 << 16
CALIBRATION_STREAM = (3, 0)
"""Random stream of the calibration sample. The splits use streams (0, part), (1, part) and (2, part)."""


def ensure(data: Data) -> Path | None:
    """Generate the data described by `data.synthetic`, unless it exists, and return the path of its synthetic.json.

    Returns None if the workflow uses no synthetic data. Raises ValueError if `data.root` contains other data.
    """
    if data.synthetic is None:
        return None
    return generate(data.synthetic, data.root.expanduser(), data.labels[0])


def generate(planted: Synthetic, root: Path, label: str = "label", threads: int | None = None) -> Path:
    """Generate the data below `root` (see `ensure`). synthetic.json contains the parameters and `planted_auc`, the AUC
    of the planted probabilities: the best that a model can reach. Waits for another process that generates the same
    data."""
    parameters = {"label": label, **json.loads(planted.model_dump_json())}
    with nullcontext() if (root / DONE).exists() else _alone(root):
        if (root / DONE).exists():
            _check_same(root, DONE, parameters)
            return root / DONE
        _begin(root, parameters)
        parts = list(_parts(planted))
        with ThreadPoolExecutor(threads or cpus()) as pool:
            counts = list(pool.map(lambda part: _make_part(planted, root, label, *part), parts))
        judged = "test" if planted.test_examples else "validation"
        bins = sum((c for c, (split, *_) in zip(counts, parts, strict=True) if split == judged), _no_counts())
        FILES.replace(root / DONE, [_json({"parameters": parameters, "planted_auc": _auc(bins)})])
        (root / BEGUN).unlink()
        return root / DONE


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Hold the lock of a folder. The system releases it when its owner exits, even if killed."""
    root.mkdir(parents=True, exist_ok=True)
    refuse_links([root / LOCK])
    with (root / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process makes the synthetic data in {root}: waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _begin(root: Path, parameters: dict[str, Any]) -> None:
    """Claim the folder, so that nothing is overwritten except an interrupted run with the same parameters."""
    if (root / BEGUN).exists():
        _check_same(root, BEGUN, parameters)
        for partial in root.glob("*/*.partial"):
            partial.unlink()
        return
    for split in SPLITS:
        if (root / split).exists():
            raise ValueError(
                f"{root / split} exists, but no {DONE} next to it says that it is synthetic data; "
                "choose another data.root, or delete the folder"
            )
    FILES.replace(root / BEGUN, [_json({"parameters": parameters})])


def _check_same(root: Path, name: str, parameters: dict[str, Any]) -> None:
    there = json.loads((root / name).read_text())["parameters"]
    differ = [
        f"{key} is {there.get(key)!r} there and {parameters.get(key)!r} here"
        for key in sorted({*there, *parameters})
        if there.get(key) != parameters.get(key)
    ]
    if differ:
        raise ValueError(
            f"{root} holds synthetic data of other parameters: {'; '.join(differ)}; "
            "choose another data.root, or delete the folder"
        )


def _parts(planted: Synthetic) -> Iterator[tuple[str, int, int]]:
    """Split, part number and number of examples of every file."""
    for split in SPLITS:
        total = getattr(planted, f"{split}_examples")
        for part, begin in enumerate(range(0, total, PART_EXAMPLES)):
            yield split, part, min(PART_EXAMPLES, total - begin)


def _make_part(planted: Synthetic, root: Path, label: str, split: str, part: int, num_examples: int) -> I64:
    """Write one file, and return its label counts by planted probability (see `_auc`)."""
    path = root / split / f"part-{part:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    rng = generator(planted, (SPLITS.index(split), part))
    bins, options = _no_counts(), {"compression": "none", "use_dictionary": False, "write_statistics": False}
    with replacing(path) as file, pq.ParquetWriter(file, _schema(planted, label), **options) as writer:
        for begin in range(0, num_examples, GROUP_EXAMPLES):
            columns = _make_group(planted, rng, min(GROUP_EXAMPLES, num_examples - begin), bins)
            arrays = [pa.array(column) for column in columns]
            writer.write_batch(pa.record_batch(arrays, schema=_schema(planted, label)))
    return bins


def _make_group(planted: Synthetic, rng: np.random.Generator, num_examples: int, bins: I64) -> list[Any]:
    keys, numbers = draw_columns(planted, rng, num_examples)
    probability = sigmoid(raw_logits(planted, keys, numbers) + bias(planted))
    labels = (rng.random(num_examples) < probability).astype(np.int8)
    at = np.minimum((probability * AUC_BINS).astype(np.int64), AUC_BINS - 1)
    bins += np.bincount(at * 2 + labels, minlength=2 * AUC_BINS).reshape(AUC_BINS, 2)
    return [labels, *numbers, *keys]


def _schema(planted: Synthetic, label: str) -> pa.Schema:
    numbers = [(f"i{x}", pa.float32()) for x in range(planted.num_numbers)]
    keys = [(f"c{f}", pa.int64()) for f in range(len(planted.keys_per_field))]
    return pa.schema([(label, pa.int8()), *numbers, *keys])


def _no_counts() -> I64:
    return np.zeros((AUC_BINS, 2), np.int64)


def _auc(bins: I64) -> float | None:
    """Area under the ROC curve of the planted probability, rounded to 1 / AUC_BINS; None unless both labels occur.

    bins[b, l] counts the examples with label l and probability in [b, b + 1) / AUC_BINS. Counts bound the memory and
    make the sum over the parts independent of their order; a pair within one bin counts one half.
    """
    negatives, positives = bins[:, 0].astype(np.float64), bins[:, 1].astype(np.float64)
    pairs = negatives.sum() * positives.sum()
    below = np.cumsum(negatives) - negatives / 2
    return float((positives * below).sum() / pairs) if pairs else None


def _json(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def generator(planted: Synthetic, stream: tuple[int, int]) -> np.random.Generator:
    """Random generator for one part of the data, independent of the other parts."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([planted.seed, *stream])))


def draw_keys(rng: np.random.Generator, num_examples: int, num_keys: int, exponent: float) -> I64:
    """Draw ranks 0 .. num_keys - 1, rank r with a frequency of about (r + 1) ** -exponent.

    Inverts the cumulative distribution of the continuous density x ** -exponent on [1, num_keys + 1).
    """
    u = rng.random(num_examples)
    rest = 1.0 - exponent
    if exponent == 0.0:
        x = 1.0 + u * num_keys
    elif abs(rest) < 1e-6:
        x = np.exp(u * np.log1p(num_keys))
    else:
        x = (1.0 + u * ((num_keys + 1.0) ** rest - 1.0)) ** (1.0 / rest)
    return np.minimum(x.astype(np.int64) - 1, num_keys - 1)


def effect(seed: int, what: str, field: int, keys: I64) -> F64:
    """Pseudorandom number per key, uniform with mean 0 and variance 1: a hash of (seed, what, field, key)."""
    hashed = np.empty(len(keys), np.uint64)
    hash_integers(keys, table_salt(f"synthetic/{seed}/{what}/{field}"), hashed)
    return ((hashed >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5) * np.sqrt(12.0)


def raw_logits(planted: Synthetic, keys: list[I64], numbers: list[F32]) -> F64:
    """Logits without the bias: effects of the keys, products of neighbouring fields' latent values, and a linear
    part."""
    seed, num_pairs = planted.seed, min(NUM_PAIRS, len(keys) - 1)
    logits = np.zeros(len(keys[0]))
    for f, keys_N in enumerate(keys):
        logits += np.sqrt(MAIN_VARIANCE / len(keys)) * effect(seed, "main", f, keys_N)
    for f in range(num_pairs):
        product = effect(seed, "left", f, keys[f]) * effect(seed, "right", f + 1, keys[f + 1])
        logits += np.sqrt(PAIR_VARIANCE / num_pairs) * product
    for x, numbers_N in enumerate(numbers):
        slope = 1.0 if x % 2 == 0 else -1.0
        logits += slope * np.sqrt(NUMBER_VARIANCE / len(numbers)) * numbers_N
    return logits


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


@cache
def bias(planted: Synthetic) -> float:
    """Bias at which a fraction `POSITIVE_RATE` of a sample's labels is positive on average, found by bisection."""
    rng = generator(planted, CALIBRATION_STREAM)
    logits = raw_logits(planted, *draw_columns(planted, rng, CALIBRATION_EXAMPLES))
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if sigmoid(logits + middle).mean() > POSITIVE_RATE else (middle, high)
    return low


def draw_columns(planted: Synthetic, rng: np.random.Generator, num_examples: int) -> tuple[list[I64], list[F32]]:
    """Draw the categorical and the numeric columns of `num_examples` examples."""
    keys = [draw_keys(rng, num_examples, n, planted.zipf) for n in planted.keys_per_field]
    return keys, [rng.standard_normal(num_examples, np.float32) for _ in range(planted.num_numbers)]
