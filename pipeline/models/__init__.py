"""Models over looked-up embeddings; each `forward` reads as its paper's equation."""

from pipeline.models.deepfm import DeepFM

__all__ = ["DeepFM"]
