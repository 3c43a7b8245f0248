"""Warm start of a run from the rows of another run or of Parquet files (`Workflow.init_from`).

Before training, the rows and layers are written as the run's first commit, at step 0, which the run opens like any
other commit. So stages, tiers and workers need no code for sources, and a source is not read again after that commit is
published. A row that is taken is treated as a row that existed before the first step. It has the weights of the source
(and the optimizer state, if taken), caught up to the last step of the source; its last step and its count are 0.
"""
