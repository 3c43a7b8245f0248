"""Checks before a run: whether it fits, how much space it will take, and what is unusual about its data."""
