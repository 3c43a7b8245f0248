"""Training on a block: the dense model over looked-up embeddings, its optimizer, its metrics."""
