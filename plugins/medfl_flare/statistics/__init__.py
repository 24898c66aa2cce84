"""Federated statistics of the sites' training images: measurement, disclosure control, outlier sites, and report."""
