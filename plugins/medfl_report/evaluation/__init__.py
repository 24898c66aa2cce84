"""Evaluation of finished models on data of a site, and the check whether the run that trained them used these data."""
