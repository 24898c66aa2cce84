"""Poisoning attacks in a simulated federation: their base classes, and the sites that carry them out."""
