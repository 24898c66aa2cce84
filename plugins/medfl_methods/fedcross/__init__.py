"""FedCross (Xu et al. 2023): models that move from site to site, without averaging."""
