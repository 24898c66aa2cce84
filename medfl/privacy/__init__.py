"""Differential privacy: policy of a run, privacy mechanisms, noise, accounting and budget ledgers."""
