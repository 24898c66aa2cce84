"""FedFed."""
