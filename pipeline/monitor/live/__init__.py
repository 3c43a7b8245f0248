"""live.jsonl: the file that a run writes while it trains, for pages, reports and other tools."""
