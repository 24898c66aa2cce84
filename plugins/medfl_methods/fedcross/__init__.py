"""FedCross."""
