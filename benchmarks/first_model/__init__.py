"""Study of the first model: which rules of thumb bring it level with what other tools reach without tuning."""
