"""Loss functions that methods share."""
