"""Robust aggregation rules that replace the mean of the updates, one file per family of rules."""
