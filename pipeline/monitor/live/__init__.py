"""live.jsonl: what a run tells while it goes, for pages, reports and other tools."""
