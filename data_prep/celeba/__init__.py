"""CelebA: faces."""
