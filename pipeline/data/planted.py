"""The planted model of synthetic data: Zipf keys, and a label that depends on them. Nothing is stored per key."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.records import F32, I64
from pipeline.workflow import Synthetic

F64 = NDArray[np.float64]

POSITIVE_RATE = 0.25
NUM_PAIRS = 4
"""Maximum number of pairs of neighbouring fields that interact."""
MAIN_VARIANCE, PAIR_VARIANCE, NUMBER_VARIANCE = 1.5, 0.5, 0.5
"""Variances of the logit, divided among the fields, the pairs and the numbers."""
CALIBRATION_EXAMPLES = 1 << 16
CALIBRATION_STREAM = (3, 0)
"""Random stream of the calibration sample. The splits use streams (0, part), (1, part) and (2, part)."""


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
