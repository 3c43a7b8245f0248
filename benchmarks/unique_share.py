"""Savings by virtual sparse ids: rows that W workers send each other in a step, compared with one per occurrence.

The trace has Criteo's 26 fields (33.8 M keys) with Zipf keys, drawn like the pipeline's synthetic data. A batch is cut
into W contiguous parts; each worker deduplicates its part and requests the rows of its unique keys from their owners.
The high bits of a key's hash determine its owner, so a worker owns 1/W of its keys, and (W-1)/W of their rows are sent
to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.cases import CARDINALITIES
from benchmarks.common import arguments, finish, machine
from pipeline.data.planted import draw_keys
from pipeline.kernels.hashing import hash_integers, table_salt
from pipeline.records import I64, U64

SHARD_BITS = 4
"""Number of high bits of a key that give its shard: 16 shards."""
WORKERS = (1, 2, 4, 8, 16)
EXPONENTS = (1.05, 1.1)
"""Zipf exponents of the other benchmarks' data: of whole runs, and of kernels."""


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its figures mean nothing."""

    fields: tuple[int, ...] = CARDINALITIES
    batches: tuple[int, ...] = (1_024, 8_192, 131_072)


QUICK = Scale(CARDINALITIES[:4], (1_024,))


@dataclass(frozen=True)
class Sent:
    """Traffic of one step among W workers, summed over all. Rows of weights; as many gradients go back."""

    occurrences: int
    """Values of the batch."""
    unique: int
    """Sum of the unique keys of the parts: a key that two workers have counts twice."""
    rows: int
    """Number of those keys that another worker owns: their rows are sent."""
    remote_occurrences: int
    """Occurrences of keys that another worker owns: rows that would be sent without virtual sparse ids."""
    busiest: float
    """Maximum of the rows that a worker sends, divided by the mean; 1 if nothing is sent."""


def draw_batch(fields: Sequence[int], examples: int, exponent: float, seed: int) -> U64:
    """Keys [examples, fields] of one batch: uint64, as `read` hashes them."""
    rng = np.random.default_rng(seed)
    keys_BF = np.empty((examples, len(fields)), np.uint64)
    key_B = np.empty(examples, np.uint64)
    for field, num_keys in enumerate(fields):
        hash_integers(draw_keys(rng, examples, num_keys, exponent), table_salt(f"c{field}"), key_B)
        keys_BF[:, field] = key_B
    return keys_BF


def owners(keys: U64, num_workers: int) -> I64:
    """Owner of each key: shards are dealt to workers in turn."""
    return (keys >> np.uint64(64 - SHARD_BITS)).astype(np.int64) % num_workers


def count(keys_BF: U64, num_workers: int) -> Sent:
    """Traffic of a step on the batch; `keys_BF`: uint64 [B, F], examples in the order of the batch."""
    unique, remote_occurrences = 0, 0
    sent_W = np.zeros(num_workers, np.int64)
    for rank, part in enumerate(np.array_split(keys_BF, num_workers)):
        keys_U, times_U = np.unique(part, return_counts=True)
        owner_U = owners(keys_U, num_workers)
        remote_U = owner_U != rank
        unique += len(keys_U)
        remote_occurrences += int(times_U[remote_U].sum())
        sent_W += np.bincount(owner_U[remote_U], minlength=num_workers)
    rows = int(sent_W.sum())
    busiest = float(sent_W.max() * num_workers / rows) if rows else 1.0
    return Sent(keys_BF.size, unique, rows, remote_occurrences, busiest)


def measure(scale: Scale, exponent: float, repeats: int) -> dict[str, float]:
    """Print a line for each batch size and number of workers, medians over batches; return the ratios by name."""
    ratios: dict[str, float] = {}
    print(f"\nZipf exponent {exponent}: medians of {repeats} batches, all workers together")
    print("   batch   W  unique/occurrences  of them remote ((W-1)/W)  rows sent  by occurrences  ratio  busiest/mean")
    for examples in scale.batches:
        batches = [draw_batch(scale.fields, examples, exponent, seed) for seed in range(repeats)]
        for num_workers in WORKERS:
            all_sent = [count(keys_BF, num_workers) for keys_BF in batches]
            share = statistics.median(sent.unique / sent.occurrences for sent in all_sent)
            remote = statistics.median(sent.rows / sent.unique for sent in all_sent)
            rows = statistics.median(sent.rows for sent in all_sent)
            naive = statistics.median(sent.remote_occurrences for sent in all_sent)
            busiest = statistics.median(sent.busiest for sent in all_sent)
            saved = rows / naive if naive else 1.0
            print(
                f"{examples:8,} {num_workers:3} {share:19.4f} {remote:14.4f} ({1 - 1 / num_workers:.4f})"
                f" {rows:14,.0f} {naive:15,.0f} {saved:6.3f} {busiest:13.3f}"
            )
            which = f"{exponent}_{examples}_{num_workers}"
            ratios |= {f"unique_{which}": share, f"remote_{which}": remote, f"sent_{which}": saved}
    return ratios


def main() -> None:
    args = arguments("unique_share", __doc__ or "")
    print(machine())
    scale = QUICK if args.quick else Scale()
    ratios: dict[str, float] = {}
    for exponent in EXPONENTS:
        ratios |= measure(scale, exponent, args.repeats)
    finish(ratios)


if __name__ == "__main__":
    main()
