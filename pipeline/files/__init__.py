"""The files of data: which files a folder, a pattern or a table holds, where they are, and how they are opened."""
