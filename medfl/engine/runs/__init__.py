"""Life cycle of a run and its folder: simulation, records, provenance, summary, and exported bundles."""
