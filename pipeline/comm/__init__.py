"""Several workers of one run: their process group, what they send each other, and what the driver asks of them."""
