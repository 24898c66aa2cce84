"""Harmonisation of images: match the grey values of each image to a template that all sites share."""
