"""Local training of a model at a site, and its predictions."""
