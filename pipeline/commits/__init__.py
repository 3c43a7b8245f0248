"""Commits, which survive a run's end: manifests, what a commit writes, opening and checking what is there."""
