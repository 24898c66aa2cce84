"""Base classes and building blocks for authors of federated methods."""
