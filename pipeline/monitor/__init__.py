"""All that a run shows and reports: metrics, the timeline of the stages, tier traffic, progress, the final table."""
