"""FedSDC."""
