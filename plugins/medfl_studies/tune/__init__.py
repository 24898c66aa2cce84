"""Search for good settings of a study's rows, using validation images only."""
