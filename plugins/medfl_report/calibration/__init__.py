"""Decisions of exported models that are chosen on validation images, and their evaluation on test images."""
