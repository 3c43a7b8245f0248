"""Measurements of a run: metrics of each split, and totals of the traffic between tiers and of the log."""
