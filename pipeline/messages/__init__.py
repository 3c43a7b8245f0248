"""Messages about mistakes in a workflow file or in --set: the location, the value, and the likely intent."""
