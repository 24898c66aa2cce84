"""Clipping, and the price of Gaussian noise; `medfl.core.filters` applies both to updates."""
