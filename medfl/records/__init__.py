"""Typed records of the files that medfl writes: one module per file format, with its only reader and writer."""
