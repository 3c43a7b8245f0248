"""Code of users, next to this package's: modules named by a digest of their text, and a digest of what a class runs."""
