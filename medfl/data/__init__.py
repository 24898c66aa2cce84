"""Prepared data sets: preparation from image files, partitioning into sites, loading for a run, leak checks."""
