"""Sections of the report for one kind of task: calibration, findings, regression, survival, segmentation."""
