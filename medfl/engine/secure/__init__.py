"""Secure aggregation: its protocol as ordinary steps of a run, with keys, secret shares, masks and fixed point."""
