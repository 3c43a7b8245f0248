"""Optimizers of the rows and of the dense part, and learning rates."""
