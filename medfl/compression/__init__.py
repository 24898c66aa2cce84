"""Fewer bits for what is sent; see `medfl.settings.Compression`."""
