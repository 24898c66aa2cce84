"""ISFL."""
