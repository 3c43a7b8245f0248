"""Doctor: finds faults in a workflow's data or run, in one bounded pass over the files."""
