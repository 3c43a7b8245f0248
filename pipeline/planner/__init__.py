"""Prediction of a run before it starts: hit rates, seconds, memory and disk, as counts times costs.

Counts come from replaying `plan` and commits on the keys of the run (`pipeline.replay`), for at most 48 M values; the
rest is extrapolated, new keys by Heaps' law. Costs of the machine (disk, copies, key map, Dask) are measured once and
cached. Costs of the workflow (`read`, `dedup`, a step, a scored batch) are measured on its first batches with its own
model, in a temporary folder.

The time of a block is the maximum of three: training, which other stages slow down if there are too few cores; any
other stage alone; and the CPU time of all stages divided by the number of cores.

Not predicted: early stopping, the growing number of rows to catch up under dense semantics, the time that workers wait
for each other, and other load on the machine.
"""
