"""Command ``medfl adopt``."""
