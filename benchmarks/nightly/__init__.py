"""Training day by day on real logs: each span is scored before it is trained on, by this package, Vowpal Wabbit and
River, and by models trained for shuffled epochs on all earlier spans."""
