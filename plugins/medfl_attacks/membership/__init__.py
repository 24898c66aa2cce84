"""Membership inference: decide whether an image was in the training data of a model."""
