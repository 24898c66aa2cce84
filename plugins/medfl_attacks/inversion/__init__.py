"""Inversion attacks: reconstruct training images from the information that sites sent."""
