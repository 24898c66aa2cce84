"""Federated statistics before training: what each site holds, as far as it may be told, and which site is odd."""
