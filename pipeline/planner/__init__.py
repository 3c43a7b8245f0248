"""Prediction of a run before it begins: hit rates, seconds, memory and disk, as counts times costs.

Counts come from a replay of `plan` and commits on the keys of the run (`pipeline.replay`), of at most 48 M values; the
rest is extrapolated, new keys by Heaps' law. Costs of the machine (disk, copies, key map, Dask) are measured once and
cached; costs of the workflow (`read`, `dedup`, a step, a scored batch) are measured on its first batches with its own
model, in a temporary folder.

A block takes as long as its slowest part: training, which other stages slow down if cores are missing; or another stage
alone; or the CPU time of all stages divided by the cores.

Not predicted: early stopping, the growth of rows to catch up under dense semantics, waits of several workers for each
other, and other load on the machine.
"""
