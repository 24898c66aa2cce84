"""A run's life and its folder: simulation, records, provenance, summary, bundles to take home."""
