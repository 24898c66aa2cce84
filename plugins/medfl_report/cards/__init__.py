"""Model cards of the bundles that sites take home, with evidence that can be checked."""
