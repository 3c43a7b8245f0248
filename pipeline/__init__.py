"""Trains CTR models whose embedding tables are larger than GPU memory and RAM."""
