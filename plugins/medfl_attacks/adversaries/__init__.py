"""Poisoning attacks for simulations, one module for each attack."""
