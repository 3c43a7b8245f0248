"""Devices for the device tier: RAM or a GPU, with NumPy, CuPy and torch arrays over the same memory."""
