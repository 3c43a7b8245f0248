"""Prediction of a run before it begins: hit rates, seconds, memory, disk and money."""
