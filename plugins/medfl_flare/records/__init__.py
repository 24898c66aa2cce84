"""Typed records of submissions, offers and the federation between machines."""
