"""One run, from an opened workflow to its result: the loop around the pipeline, commits, resuming, recovery."""
