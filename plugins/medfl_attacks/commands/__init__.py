"""Command ``medfl attack``."""
