"""The page of a run, while it goes and afterwards: served by `watch` and Dask's server, or as a file by `report`."""
