"""Where the device tier is: RAM, or the memory of a GPU; arrays as CuPy and torch see them."""
