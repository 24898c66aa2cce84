"""Overview of a data set for its owner, before training: pictures, faults, duplicates, and sites that differ."""
