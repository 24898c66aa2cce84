"""Mini-MIAS: mammograms."""
