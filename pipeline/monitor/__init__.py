"""What a run shows: progress, live.jsonl, its page and reports, the table of runs, and exports to other tools."""
