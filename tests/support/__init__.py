"""Helpers shared by several tests.

| folder | contents |
| --- | --- |
| `oracle/` | references for runs: the plain trainer, equations of models, replayed plans, the contract of tiers |
| `runs/` | runs of small workflows: in this process, on threads, on Dask, in processes that can be paused and killed |
| `faults/` | kills, forged and flipped files, small disks, forced task orders, user mistakes |
| `data/` | raw lines, Parquet files, blocks, batches, plans and pages that tests start from |
| `http/` | servers and clients of the Open Inference Protocol |
| `gpu/` | a simulated GPU whose streams are late, grids of threads, checks that CUDA twins produce the CPU's bits |

`depth.py` determines how many forms of a test `make test`, `make prove` and `make prove-all` run, and `scratch.py`
where tests write. With `compile_once.py`, several processes share the compilation of kernels.
"""
