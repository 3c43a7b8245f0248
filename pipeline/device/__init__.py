"""Devices for the device tier: RAM or a GPU; arrays of NumPy, CuPy and torch over the same memory."""
