"""Records of the files that a study writes, each with one reader and one writer."""
