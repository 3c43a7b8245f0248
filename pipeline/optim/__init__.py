"""Row optimizers."""
