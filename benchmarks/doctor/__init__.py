"""Evaluation of `pipeline doctor` on copies of data sets with one planted fault each."""
