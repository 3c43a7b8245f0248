"""Doctor: what is wrong with the data or the run of a workflow, found in one bounded pass over the files."""
