"""Models of sequences: accuracy on real histories, and speed compared with padded implementations."""
