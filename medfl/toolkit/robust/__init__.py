"""Robust rules in place of the mean of updates."""
