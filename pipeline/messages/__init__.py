"""Messages about mistakes in a workflow file or in --set: the place, the value, and what was probably meant."""
