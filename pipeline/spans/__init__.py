"""Spans of training data in time: the calendar, the list of passes over it, the guard, and the table of scores."""
