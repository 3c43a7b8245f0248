"""One run, from an opened workflow to its result: the loop above the pipeline, commits, resuming, recovery."""
