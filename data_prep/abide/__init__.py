"""ABIDE: brain maps of the Preprocessed Connectomes Project."""
