"""FedSDC (Gao et al. 2025): a shared body with a pool of different heads that sites train in turn and that vote."""
