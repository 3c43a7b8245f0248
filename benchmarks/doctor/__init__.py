"""Judgement of `pipeline doctor`: copies of data sets with one fault planted in each, and what it finds in them."""
