"""Names of the inputs and the output of a dense part in files for other programs."""

INPUTS = ("numbers", "embeddings", "first_order")
"""Inputs, float32: [B, X], [B, F, D], and [B, F] or, without first-order weights, [B, 0]."""
OUTPUT = "logits"
"""Output, float32: [B], or [B, T] with several labels."""
