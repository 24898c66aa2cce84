"""FedTPF."""
