"""Robust rules in place of the mean of updates: one file for each family of rules."""
