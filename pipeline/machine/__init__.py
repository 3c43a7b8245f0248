"""The machine, what it has and allows: cores, GPUs, memory, threads, signals."""
