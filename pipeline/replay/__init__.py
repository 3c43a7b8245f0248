"""Replay: plans and commits of a run on keys alone, to know the hits of each tier without training."""
