"""Time spans of training data: the calendar, the list of passes over it, and the guard."""
