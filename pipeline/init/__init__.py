"""First workflow for files of one's own: what is in their columns, what to take them for, and a file to train."""
