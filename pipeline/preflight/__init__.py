"""Checks before a run: whether it fits, the space it will take, and what is unusual about its data."""
