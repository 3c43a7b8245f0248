"""Doctor: faults in the data or in the run of a workflow, found in one bounded pass over the files."""
