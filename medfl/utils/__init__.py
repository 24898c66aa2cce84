"""What knows nothing of learning: bytes, files, locks, random streams, YAML, progress."""
