"""What the machine has and allows: cores, GPUs, memory, threads, signals."""
