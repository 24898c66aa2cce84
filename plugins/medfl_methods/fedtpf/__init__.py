"""FedTPF: FedFed with class prototypes, a critic, and sites that stop training the distiller early."""
