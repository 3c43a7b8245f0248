"""Communication between the workers of one run: process group, collectives, exchange of keys, rows and gradients."""
