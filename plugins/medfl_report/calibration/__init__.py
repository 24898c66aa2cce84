"""Decisions of exported models, chosen on validation images: thresholds, recalibration, prediction sets, sample sizes."""
