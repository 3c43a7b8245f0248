"""Everything that is found out before a run: whether it fits, what it takes, what is odd about it."""
