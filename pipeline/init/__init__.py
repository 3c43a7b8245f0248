"""First workflow for a user's files: inspects the columns, chooses the role of each, and writes a draft."""
