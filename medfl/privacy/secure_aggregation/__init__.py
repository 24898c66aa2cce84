"""Secure aggregation as pure functions: keys, secret shares, masks, fixed point, noise and what it promises."""
