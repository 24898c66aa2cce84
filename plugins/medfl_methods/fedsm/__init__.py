"""FedSM (Xu et al. 2022): a global model, personal models, and a selector network that chooses among them."""
