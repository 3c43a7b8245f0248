"""The page of a run, during and after training: served by `watch` and Dask's server, or written to a file by
`report`."""
