"""Columns of a hospital's own table: targets, features, and the guard against columns that identify patients."""
