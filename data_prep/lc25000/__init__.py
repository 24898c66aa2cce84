"""LC25000: histology."""
