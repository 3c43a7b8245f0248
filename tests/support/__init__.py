"""What several tests share.

| folder | holds |
| --- | --- |
| `oracle/` | what runs must equal: the plain trainer, equations of models, replayed plans, the contract of tiers |
| `runs/` | runs of small workflows: in this process, on threads, on Dask, in processes that can be paused and killed |
| `faults/` | kills, forged and flipped files, small disks, forced orders of tasks, mistakes of users |
| `data/` | raw lines, Parquet files, blocks, batches, plans and pages that tests begin with |
| `http/` | servers and clients of the Open Inference Protocol |
| `gpu/` | a simulated GPU whose streams are late, grids of threads, checks that CUDA twins give the CPU's bits |

`depth.py` says how many forms of a test `make test`, `make prove` and `make prove-all` run, `scratch.py` where tests
write; `compile_once.py` lets several processes share the compilation of kernels.
"""
