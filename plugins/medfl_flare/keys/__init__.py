"""Startup kits whose private keys never leave their owner's machine, made with NVFlare's signing requests."""
