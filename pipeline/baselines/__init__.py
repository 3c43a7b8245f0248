"""Loglosses of models without interactions on a workflow's data, for comparison with the workflow's first run."""
