"""The page of a run, during training and afterwards: served by `watch` and Dask's server, or as a file by `report`."""
