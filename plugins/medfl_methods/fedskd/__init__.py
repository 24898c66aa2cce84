"""FedSKD (Weng et al. 2025): peer-to-peer distillation between sites by the similarity of their features."""
