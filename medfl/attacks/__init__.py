"""Attacks that measure what a run gives away. They read a run folder; they write to its folder ``attacks`` only."""
