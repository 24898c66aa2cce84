"""FedFA (Zhou et al. 2023): FedAvg with a feature anchor for each class."""
