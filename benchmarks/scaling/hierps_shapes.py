"""Predictions of the scaling model for HierPS's five models on one machine with 8 GPUs, and on 16 such machines.

ASSUMPTIONS, none of them measured here: the hardware (about two thirds of the speeds that vendors name), all constants
of a GPU, a Zipf exponent of 1.05 in each of as many equal fields as an example has values, 8 weights per row, perfect
caches, 16,384 examples per step and GPU (--examples). Measured on two shared cores (RESULTS.md, CPU): processor time of
reading and planning. Published (Zhao et al., MLSys 2020): values of an example, keys, dense parameters. The paper's
machines and steps differ, so its speeds are not the ones predicted.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks.cases import CARDINALITIES
from benchmarks.common import arguments, finish
from benchmarks.scaling.inputs import Cluster, Costs, Link, Run, Shape
from benchmarks.scaling.model import Prediction, predict
from benchmarks.scaling.zipf import Fields

DIM = 8
ROW_BYTES = 4 * (3 * DIM + 5)
"""Bytes of a row with Adam in `pipeline`: key, weights, m, v, last step, count, tag."""
PUBLISHED = (
    ("A", 100, 8e9, 700_000),
    ("B", 100, 2e10, 20_000),
    ("C", 500, 6e10, 2_000_000),
    ("D", 500, 1e11, 4_000_000),
    ("E", 500, 2e11, 7_000_000),
)
"""Models: name, values of an example, keys, dense parameters."""
HIERPS = tuple(Shape(name, (Fields(keys / nnz, nnz),), dense, DIM, ROW_BYTES) for name, nnz, keys, dense in PUBLISHED)
CRITEO = Shape("Criteo", tuple(Fields(keys, 1) for keys in CARDINALITIES), 27_000, 17, 224)
"""Trace of `end_to_end` and `unique_share`, with DeepFM, D = 16 and an MLP of 64."""

TWO_CORES = Costs(
    value_read_ns=6,
    value_deduplicated_ns=5,
    key_planned_ns=230,
    value_trained_ns=32,
    row_trained_ns=45,
    row_exchanged_ns=20,
    example_trained_ns=2_000,
    parameter_trained_ns=0.07,
    step_s=0.0,
)
"""Constants of the machine in RESULTS.md, from the times of its stages and kernels; `row_exchanged_ns` from gathers and
sums."""
GPU = replace(
    TWO_CORES,
    value_deduplicated_ns=0.2,
    value_trained_ns=0.05,
    row_trained_ns=0.2,
    row_exchanged_ns=0.1,
    example_trained_ns=5,
    parameter_trained_ns=6 / 20_000,
    step_s=1e-3,
)
"""Assumed constants of a GPU: rows at two thirds of 3 TB/s, 20 TFlop/s, one millisecond of launches per step."""
NVLINK = Link(300e9, 10e-6)
ETHERNET_100 = Link(8e9 / 8, 20e-6)
"""Network of 100 Gb/s, shared by a machine's 8 GPUs, as in the paper."""
INFINIBAND_400 = Link(33e9, 10e-6)
"""Network of 400 Gb/s for each GPU."""
MACHINE = Cluster(
    machines=1, workers=8, cores=112, threads=4, on_gpu=True, inside=NVLINK, between=ETHERNET_100,
    source_bytes_per_s=8e9, disk_bytes_per_s=30e9, upload_bytes_per_s=20e9, device_rows=4e8, host_rows=1e9,
)  # fmt: skip
"""Clusters: 46 GB of a GPU's memory and 930 GB of 1.5 TB of RAM hold rows; 8 NVMe disks; data comes over a separate
network."""
CLUSTERS = {
    "1 x 8": MACHINE,
    "16 x 8, 100 Gb/s": replace(MACHINE, machines=16),
    "16 x 8, 8 x 400 Gb/s": replace(MACHINE, machines=16, between=INFINIBAND_400),
}
EXAMPLES_PER_GPU = 16_384
KSTEP = 20


def runs(cluster: Cluster, examples: int = EXAMPLES_PER_GPU) -> dict[str, Run]:
    """Runs by name: dense gradients summed at every step; with several machines, also k-step Adam between them, with x
    and v merged."""
    every = Run(examples * cluster.num_workers, block_batches=4)
    kstep = {f"k = {KSTEP}": replace(every, between_every=KSTEP, words=2)} if cluster.machines > 1 else {}
    return {"k = 1": every} | kstep


def line(found: Prediction, cluster: Cluster) -> str:
    """Line with the speed, also per worker; the slowest part; the second slowest and training, each divided by it; and
    the MB that a worker sends per step."""
    parts = sorted(found.parts.items(), key=lambda part: -part[1])
    (_, longest), (name, after) = parts[:2]
    megabytes = sum(found.sent[1:]) / 1e6
    return (
        f"{found.examples_per_s:14,.0f} {found.examples_per_s / cluster.num_workers:11,.0f}  {found.binds:7}"
        f" {name:>7} {after / longest:5.2f} {found.parts['train'] / longest:7.2f} {megabytes:10,.1f}"
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--examples", type=int, default=EXAMPLES_PER_GPU, help="of a step, for each GPU")


def main() -> None:
    args = arguments("scaling.hierps_shapes", __doc__ or "", options)
    ratios: dict[str, float] = {}
    print(__doc__)
    for name, cluster in CLUSTERS.items():
        print(f"{name} (assumed hardware); parts by the one that binds; MB sent a step and GPU")
        print("   model            examples/s    of a GPU  binds   the next part   train         MB")
        for shape in HIERPS:
            for how, run in runs(cluster, args.examples).items():
                found = predict(shape, GPU, cluster, run)
                print(f"   {shape.name} {how:7} {line(found, cluster)}")
                ratios[f"{shape.name}, {name}, {how}"] = found.examples_per_s
    print("16 machines by one, at as many examples a GPU. A key that several GPUs have is planned and trained on once,")
    print("so more of them have less to do each: more than 16 is possible.")
    for shape in HIERPS:
        one, slow, fast = (ratios[f"{shape.name}, {name}, k = 1"] for name in CLUSTERS)
        print(f"   {shape.name} 100 Gb/s {slow / one:5.1f}, 8 x 400 Gb/s {fast / one:5.1f}")
    finish(ratios)


if __name__ == "__main__":
    main()
