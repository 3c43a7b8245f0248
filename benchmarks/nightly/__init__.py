"""Training day by day on real logs: each span is scored before it is trained on, by this package, by Vowpal Wabbit and
by River, and by models that train for shuffled epochs on all that came before."""
