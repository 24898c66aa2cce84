"""Evaluation of a finished model at the sites of a federation: nothing is trained, and only declared scores leave."""
