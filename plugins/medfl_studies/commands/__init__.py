"""Commands ``medfl study``, ``tune`` and ``demo``."""
