"""Data files: which files belong to a folder, a pattern or a table, where they are, and how they are opened."""
