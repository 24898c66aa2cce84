"""Partitions: one way to split a pooled data set among sites in each file."""
