"""Secure aggregation: a protocol in ordinary steps of a run, with keys, shares, masks and fixed-point numbers."""
