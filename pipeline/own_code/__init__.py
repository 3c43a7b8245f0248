"""User code: modules named by a digest of their source text, and a digest of all code that a class runs."""
