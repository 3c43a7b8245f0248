"""Prediction of a run before it begins: hit rates, seconds, memory, disk and money, on this or on another machine."""
