"""Models of sequences: accuracy on real histories, and speed next to padded implementations."""
