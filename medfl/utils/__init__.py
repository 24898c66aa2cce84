"""Utilities without knowledge of federated learning: files, text, random streams, serialization, processes."""
