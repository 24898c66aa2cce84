"""Secure aggregation of a method's updates: four operations that the core owns, as ordinary steps of a run."""
