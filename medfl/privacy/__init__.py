"""Differential privacy: the policy of a run, one mechanism a file, noise, accounting and ledgers."""
