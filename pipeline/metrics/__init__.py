"""Measurements of a run: exact metrics of each split, and totals of the traffic between tiers and of the log."""
