"""Loglosses of models without feature interactions on a workflow's data, to compare with the workflow's first run."""
