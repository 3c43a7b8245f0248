"""Predictions of `--explain` against real runs."""
