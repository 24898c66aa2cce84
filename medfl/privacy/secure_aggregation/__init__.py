"""Secure aggregation as pure functions: keys, secret shares, masks, fixed point, discrete noise and what it promises."""
