"""live.jsonl: what a run writes while it trains, for pages, reports and other tools."""
