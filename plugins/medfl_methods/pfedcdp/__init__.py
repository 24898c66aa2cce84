"""PFedCDP."""
