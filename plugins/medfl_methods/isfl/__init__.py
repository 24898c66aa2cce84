"""ISFL (Zhu et al. 2024): FedAvg with importance sampling over classes."""
