"""Display of runs: progress, live.jsonl, page and reports, the table of runs, and exports to other tools."""
