"""Data sets whose cases run through MONAI transforms, with a cache for the deterministic transforms."""
