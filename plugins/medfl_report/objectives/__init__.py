"""Sections of the report that hang on what was learned: calibration, findings, numbers, survival, masks."""
