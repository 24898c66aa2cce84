"""Kits whose private keys are made where they stay: NVFlare's signing requests, wrapped."""
