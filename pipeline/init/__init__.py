"""Draft of a first workflow for a user's files: what their columns hold, the role of each column, and the file."""
