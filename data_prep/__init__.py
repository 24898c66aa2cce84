"""Prepared releases of medical images: a folder for each."""
