"""The toolkit for authors of methods."""
