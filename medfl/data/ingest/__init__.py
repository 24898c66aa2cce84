"""Preparation of data sets: read image files into one array and write the data list."""
