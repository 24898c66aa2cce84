"""Studies: a file that names data, methods and seeds, and yields a comparison table."""
