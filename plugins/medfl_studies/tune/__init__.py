"""Looking for good settings of a study's rows, on validation images alone."""
