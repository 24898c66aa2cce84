"""Commands ``medfl study``, ``medfl tune`` and ``medfl demo``."""
