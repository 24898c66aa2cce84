"""FedKF (Zhou et al. 2023): FedAvg with data-free distillation from a mean of all sites' last models."""
