"""CBIS-DDSM: mammograms."""
