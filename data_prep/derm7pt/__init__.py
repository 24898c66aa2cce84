"""Derm7pt: dermoscopy."""
