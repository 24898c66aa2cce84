"""Live view of runs, from the events in their ``progress.jsonl``: in a terminal or on a local page. Read-only."""
