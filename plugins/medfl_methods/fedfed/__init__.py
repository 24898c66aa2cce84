"""FedFed (Yang et al. 2023), and the base classes of methods that share distilled parts of images."""
