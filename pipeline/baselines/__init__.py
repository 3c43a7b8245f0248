"""What models without interactions reach on a workflow's data: the measure of its first run."""
