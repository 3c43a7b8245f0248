"""Time spans of training data: the calendar, the list of passes over it, the guard, and the table of scores."""
