"""Commits, which outlive a run: manifests, writing a commit, opening one, checking files for damage."""
