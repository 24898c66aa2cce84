"""Clipping, and the price of Gaussian noise; `medfl.filters` applies both to updates."""
