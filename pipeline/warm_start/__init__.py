"""Start of a run from the rows of another run or of Parquet files (`Workflow.init_from`).

Before anything is trained, the rows and layers are written as the run's first commit, at step 0, and the run opens it
as it opens any commit. So no stage, tier or worker knows of the source, and once that commit is published it is not
read again. The rule: a row that is taken is a row that existed before the first step. It has the weights (and, if they
are taken, the optimizer's state) of the source, caught up there to the last step; its last step and its count are 0.
"""
