"""Study of the first model: which rules of thumb make it as accurate as other tools without tuning."""
