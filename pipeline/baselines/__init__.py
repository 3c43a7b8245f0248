"""Loglosses of models without interactions on a workflow's data, with which its first run is compared."""
