"""The pipeline compared with the usual torch way and with its own ceiling, all in one run.

(a) the pipeline, all rows in the device slab           (c) nn.Embedding(sparse=True) + SparseAdam, all in memory
(b) the pipeline, slabs of 10 % of the table            (d) the ceiling: the dense model on ready-made embeddings
    with the page cache, which then holds the log,      (e) FBGEMM's tables on the CPU, all in memory; left out where
    and past it, with `storage.direct`                      FBGEMM is not installed (`fbgemm_way`)

(c) and (e) are "tuned": they run with the pipeline's setting of the C allocator.

Batches of 8,192 examples with 26 fields of Zipf keys, D = 16, Adam. Only the rows of (e) use row-wise Adagrad, because
FBGEMM has no Adam on the CPU; so (a) does more work. With "compiled" after the number of hidden units, the dense model
is compiled; with "bf16", its products are in bfloat16: in (a), and likewise in (c), (d) and (e). Figures are examples
per second, medians of interleaved repeats. Figures of the pipeline include filling and draining it. `--advantages`
measures only (a), (c), (d) and (e), compiled and in bf16, and the peers as they are run today, in a third of the time.
`--tiers` measures only (a) and (b).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from benchmarks.cases import DIM, Case, dense_ids, keys_per_field, make_workflow
from benchmarks.common import arguments, finish, in_own_process, machine, spread
from benchmarks.end_to_end import fbgemm_way
from benchmarks.end_to_end.advantages import COMPILED, COMPILED_BF16, EAGER, Advantages
from benchmarks.end_to_end.torch_way import Ceiling, Sparse
from benchmarks.table import raw_row_rate, warm_log_pages
from pipeline.cluster.local import local_client
from pipeline.machine.process import keep_freed_memory
from pipeline.monitor.history import StageTimes
from pipeline.preflight.check_model import fast_in_bfloat16
from pipeline.records import StageCall
from pipeline.stages import STAGES

Part = Literal["advantages", "tiers"]
SMALL, WIDE = (64,), (400, 400, 400)
ADVANTAGES = {
    "64 compiled": (SMALL, COMPILED),
    "400 compiled": (WIDE, COMPILED),
    "400 compiled bf16": (WIDE, COMPILED_BF16),
}
"""Cases with the same advantages on all sides, by the suffix of their names."""
NO_BFLOAT16 = "cases in bf16 are left out: this processor has no instructions for it, and a step would take ten seconds"


@dataclass(frozen=True)
class Scale:
    """Sizes of everything; a quick run only shows that it works, its speeds mean nothing."""

    batch: int = 8192
    block_batches: int = 16
    keys_in_memory: int = 2_000_000
    keys_on_disk: int = 20_000_000
    data_batches: int = 640
    ring_rows: int = 1_200_000
    blocks: int = 10
    wide_blocks: int = 6
    torch_batches: int = 40
    scattered_rows: int = 100_000

    def case(self, in_memory: bool) -> dict[str, int]:
        slab = self.keys_in_memory if in_memory else max(self.keys_on_disk // 20, self.ring_rows // 2)
        host = 1000 if in_memory else self.keys_on_disk // 20
        sizes = {"slab_rows": slab, "host_rows": host, "ring_rows": self.ring_rows}
        return sizes | {"batch_size": self.batch, "block_batches": self.block_batches}


QUICK = Scale(256, 4, 150_000, 200_000, 40, 60_000, 4, 2, 4, 100)


class Bench:
    """All cases, opened once; `repeat` measures each in turn."""

    def __init__(
        self, scale: Scale, data: Path, tmp: Path, client: Any, bfloat16: bool, only: Part | None = None
    ) -> None:
        """`bfloat16`: False omits the cases in bf16. `only`: the part to measure; None: all."""
        self.only: Part | None = only
        fast = {n: (h, given) for n, (h, given) in ADVANTAGES.items() if bfloat16 or not given.bfloat16}
        self.advantages = {} if only == "tiers" else fast
        self.scale, self._data, self._tmp, self._client = scale, data, tmp, client
        self.cases = {"a64": self._open("a64", SMALL, True, scale.blocks)}
        if only != "advantages":
            self.cases["b64 page cache"] = self._open("b64", SMALL, False, scale.blocks)
            self.cases["b64 direct"] = self._open("b64_direct", SMALL, False, scale.blocks, direct=True)
        if not only:
            self.cases["a400"] = self._open("a400", WIDE, True, scale.wide_blocks)
        for name, (hidden, advantages) in self.advantages.items():
            blocks = scale.blocks if hidden == SMALL else scale.wide_blocks
            self.cases[f"a{name}"] = self._open(f"a{name}".replace(" ", "_"), hidden, True, blocks, advantages)
        for name, case in self.cases.items():
            case.stretches.run(2 if name.startswith("a400") else scale.blocks)
        self.rates: dict[str, list[float]] = defaultdict(list)
        self.calls: dict[str, list[StageCall]] = defaultdict(list)
        self.rows_from_disk: dict[str, list[float]] = defaultdict(list)
        """Rows per example, for each case and repeat."""
        if only != "tiers":
            self._open_peers()

    def _open_peers(self) -> None:
        scale, tmp = self.scale, self._tmp
        ids, labels = dense_ids(self.cases["a64"].stretches.driver.setup.workflow, scale.torch_batches * scale.batch)
        self._num_ids = sum(keys_per_field(scale.keys_in_memory))
        np.savez(tmp / "ids.npz", ids=ids, labels=labels)
        self._sparse = {h: Sparse(ids, labels, self._num_ids, DIM, h) for h in (SMALL, WIDE)}
        self._ceiling = {h: Ceiling(ids.shape[1], scale.batch, DIM, h) for h in (SMALL, WIDE)}
        fast = self.advantages.items()
        self._fast_sparse = {n: Sparse(ids, labels, self._num_ids, DIM, h, given) for n, (h, given) in fast}
        self._fast_ceiling = {n: Ceiling(ids.shape[1], scale.batch, DIM, h, given) for n, (h, given) in fast}

    def _open(
        self,
        name: str,
        hidden: tuple[int, ...],
        in_memory: bool,
        blocks: int,
        advantages: Advantages = EAGER,
        direct: bool = False,
    ) -> Case:
        scale = self.scale
        keys = scale.keys_in_memory if in_memory else scale.keys_on_disk
        examples = scale.data_batches * scale.batch
        workflow = make_workflow(name, self._data, keys, examples, hidden, **scale.case(in_memory))
        given = {"compile": advantages.compile, "precision": "bfloat16" if advantages.bfloat16 else "float32"}
        model = workflow.model.model_copy(update=given)
        storage = workflow.storage.model_copy(update={"direct": direct})
        workflow = workflow.model_copy(update={"model": model, "storage": storage})
        return Case(workflow, self._tmp / name, self._client, blocks)

    def torch(self) -> dict[str, float]:
        """Examples per second of the usual way, the ceiling and FBGEMM; empty if only the tiers are measured."""
        if self.only == "tiers":
            return {}
        rates = {}
        for hidden, batches in ((SMALL, self.scale.torch_batches), (WIDE, self.scale.torch_batches // 2)):
            name, batch = hidden[0], self.scale.batch
            rates[f"c{name} tuned"] = self._sparse[hidden].train(batches, batch)
            rates[f"d{name}"] = self._ceiling[hidden].train(batches)
            if fbgemm_way.installed():
                rates[f"e{name} tuned"] = self._fbgemm(EAGER, batches, hidden)
        for name, (hidden, advantages) in self.advantages.items():
            batches = self.scale.torch_batches // (1 if hidden == SMALL else 2)
            rates[f"c{name}"] = self._fast_sparse[name].train(batches, self.scale.batch)
            rates[f"d{name}"] = self._fast_ceiling[name].train(batches)
            if fbgemm_way.installed():
                rates[f"e{name}"] = self._fbgemm(advantages, batches, hidden)
        return rates

    def _fbgemm(self, advantages: Advantages, batches: int, hidden: tuple[int, ...]) -> float:
        numbers = (self.scale.keys_in_memory, *advantages.numbers, batches, self.scale.batch, *hidden)
        return in_own_process("end_to_end.fbgemm_way", self._tmp / "ids.npz", *numbers)

    def repeat(self) -> None:
        for name, rate in self.torch().items():
            self.rates[name].append(rate)
        for name, case in self.cases.items():
            if name == "b64 page cache":
                warm_log_pages(case.stretches.worker.tiers.log.path)
            self._measure(name)
        print(", ".join(f"{name} {values[-1]:,.0f}" for name, values in self.rates.items()), flush=True)

    def _measure(self, name: str) -> None:
        case = self.cases[name]
        before = case.stretches.disk_rows_read
        rate, calls = case.stretches.run(case.blocks)
        self.rates[name].append(rate)
        self.calls[name] += calls
        examples = case.blocks * self.scale.block_batches * self.scale.batch
        self.rows_from_disk[name].append((case.stretches.disk_rows_read - before) / examples)

    def share_of_limit(self) -> float:
        """Speed of (b) without the page cache, divided by the lower of (a) and the disk limit; median over the
        repeats."""
        b64, rows_from_disk = self.cases["b64 direct"], self.rows_from_disk["b64 direct"]
        row_rate = raw_row_rate(b64.stretches.worker.tiers.log, b64.rows, self.scale.scattered_rows)
        print(f"\npread with 64 threads takes {row_rate:,.0f} scattered rows/s, cold; (b) past the page cache:")
        shares = []
        for rate, a_rate, rows in zip(self.rates["b64 direct"], self.rates["a64"], rows_from_disk, strict=True):
            limit = row_rate / rows if rows else float("inf")
            shares.append(rate / min(a_rate, limit))
            print(f"{rows:.2f} rows per example from disk, which allows {limit:,.0f} examples/s; reached {rate:,.0f}")
        return statistics.median(shares)

    def close(self) -> None:
        for case in self.cases.values():
            case.close()


def print_stages(name: str, calls: list[StageCall]) -> None:
    print(f"\n{name}: seconds, CPU seconds of its thread, share hidden behind training")
    times = StageTimes(calls)
    seconds, cpu, hidden = times.seconds, times.cpu_seconds, times.hidden()
    for stage in (s for s in STAGES if s in seconds):
        share = f"{hidden[stage]:6.1%}" if stage in hidden else "     -"
        print(f"  {stage:12} {seconds[stage]:8.2f} {cpu[stage]:8.2f} {share}")


def report(args: argparse.Namespace, bench: Bench) -> None:
    """Print all figures."""
    print(f"\n{'':15} examples/s, median [least .. most]")
    for name, values in sorted(bench.rates.items()):
        print(f"{name:15} {spread(values)}")
    m = {name: statistics.median(values) for name, values in bench.rates.items()}
    tiers = {}
    if bench.only != "advantages":
        for name in ("a64", "b64 page cache", "b64 direct"):
            print_stages(name, bench.calls[name])
        tiers = {"b_vs_a": m["b64 page cache"] / m["a64"], "b_vs_limit": bench.share_of_limit()}
    if bench.only == "tiers":
        return finish(args, m | tiers)
    print(fbgemm_way.NOTE if fbgemm_way.installed() else fbgemm_way.NOT_INSTALLED)
    if len(bench.advantages) < len(ADVANTAGES):
        print(NO_BFLOAT16)
    if bench.only:
        return finish(args, m | with_advantages(m))
    fbgemm = {f"a_vs_fbgemm_mlp{h}": m[f"a{h}"] / m[f"e{h} tuned"] for h in (64, 400) if f"e{h} tuned" in m}
    finish(args, {
        **m,
        "a_vs_c_mlp64_tuned": m["a64"] / m["c64 tuned"],
        "a_vs_d_mlp400": m["a400"] / m["d400"],
        **tiers,
        **fbgemm,
        **with_advantages(m),
    })  # fmt: skip


def with_advantages(m: Mapping[str, float]) -> dict[str, float]:
    """(a), compiled, against the best peer with the same or fewer advantages, the peers as they are run today (float32,
    eager), and the ceiling. `m`: medians by case name."""
    of_hidden = {h: [m[p] for p in (f"c{h} tuned", f"e{h} tuned") if p in m] for h in (64, 400)}
    ratios = {}
    for name, (hidden, advantages) in ADVANTAGES.items():
        if f"a{name}" in m:
            mine, today = m[f"a{name}"], max(of_hidden[hidden[0]])
            key = name.replace(" compiled bf16", "_bf16").replace(" ", "_")
            peer = max(m[p] for p in (f"c{name}", f"e{name}") if p in m)
            # Compiling slows some peers down; bf16 is compared with bf16.
            ratios[f"a_vs_best_mlp{key}"] = mine / (peer if advantages.bfloat16 else max(peer, today))
            ratios[f"a_vs_eager_peers_mlp{key}"] = mine / today
            ratios[f"a_vs_ceiling_mlp{key}"] = mine / m[f"d{name}"]
    return ratios


def options(parser: argparse.ArgumentParser) -> None:
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--advantages", action="store_true", help="only what is compiled or in bf16, and its peers")
    part.add_argument("--tiers", action="store_true", help="only the pipeline, in memory and with rows on disk")


def main() -> None:
    args = arguments("end_to_end", __doc__ or "", options)
    print(machine())
    keep_freed_memory()
    with ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=".", prefix=".benchmark-")))
        client = stack.enter_context(local_client())
        scale, bfloat16 = QUICK if args.quick else Scale(), args.quick or fast_in_bfloat16()
        only: Part | None = "advantages" if args.advantages else "tiers" if args.tiers else None
        bench = Bench(scale, args.data, tmp, client, bfloat16, only)
        stack.callback(bench.close)
        bench.torch()
        for _ in range(1 if args.quick else args.repeats):
            bench.repeat()
        report(args, bench)


if __name__ == "__main__":
    main()
