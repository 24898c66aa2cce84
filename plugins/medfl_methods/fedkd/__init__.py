"""FedKD (Wu et al. 2022): mutual distillation between a local mentor and a shared mentee, with low-rank updates."""
