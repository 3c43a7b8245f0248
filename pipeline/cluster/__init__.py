"""Dask: runs stages in this process or in worker processes. No other folder imports Dask."""
