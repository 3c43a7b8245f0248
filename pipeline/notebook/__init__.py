"""Training in a notebook or a script of one's own."""
