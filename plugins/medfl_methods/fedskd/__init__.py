"""FedSKD."""
