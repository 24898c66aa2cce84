"""Local training and prediction."""
