"""Runs as they happen: what their ``progress.jsonl`` says, in a terminal and on a page. Nothing is changed."""
