"""The machine's resources and limits: cores, GPUs, memory, threads, signals."""
