"""Networks, and access to their heads, bodies and normalisation layers."""
