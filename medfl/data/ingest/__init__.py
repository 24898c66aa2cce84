"""Makes a prepared data set: workers, checkpoint, quarantine, download, a hospital's own images."""
